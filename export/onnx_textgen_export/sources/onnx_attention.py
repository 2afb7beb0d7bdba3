"""The two ONNX forms of attention over a cache, written into the graph while it is traced.

`ort` is ONNX Runtime's GroupQueryAttention, which updates a shared key/value buffer in place; `standard` is the Attention operator
of ONNX opset 23 with growing caches, for every conforming runtime. Both replace `attention.EagerLayer` while tracing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import torch
import torch.onnx.ops as onnx_ops
from torch import Tensor, nn

from onnx_textgen.package.manifest import Target

from ..errors import ExportError
from .attention import AttentionForm, LayerCache

Presents = tuple[Tensor, Tensor]
HIDDEN = -1e30
"""Added to masked scores where a mask is not boolean."""
BIDIRECTIONAL: ContextVar[Tensor | None] = ContextVar("new tokens that see their neighbors in both directions", default=None)
"""bool [batch, new]: whether a token is of a picture, where those of a picture see each other. GroupQueryAttention leaves it to
`extra_graphs/bidirectional`."""


class TracedLayer(LayerCache, Protocol):
    """A `LayerCache` that knows the layer's present key and value once it has attended."""

    def presents(self) -> Presents:
        """The cache after the call, in the target's layout."""
        ...


def attended(present: Presents | None) -> Presents:
    """The presents of a layer; raises `ExportError` if the decoder did not use it."""
    if present is None:
        raise ExportError("a layer of the decoder did not attend while it was traced; does the module skip layers?")
    return present


def heads_last(x: Tensor) -> Tensor:
    """[batch, heads, new, size] -> [batch, new, heads * size], the layout GroupQueryAttention reads."""
    return x.transpose(1, 2).flatten(2)


class GroupQueryLayer:
    """`com.microsoft::GroupQueryAttention`; the past is a buffer of any capacity, of which `lengths` tokens count.

    More than one new token over a past works at batch 1 only; the runtime observes that limit of the operator.
    """

    def __init__(self, past: tuple[Tensor, Tensor], last_positions: Tensor, total: Tensor) -> None:
        self.past, self.last_positions, self.total = past, last_positions, total
        self.present: Presents | None = None

    def presents(self) -> Presents:
        """The shared buffers after the call."""
        return attended(self.present)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        """See `attention.cached_attention`."""
        batch, heads, new, size = query.shape
        attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": key.shape[1]}
        if form.scale is not None:
            attributes["scale"] = float(form.scale)
        if form.window:
            attributes["local_window_size"] = int(form.window)
        if form.softcap:
            attributes["softcap"] = float(form.softcap)
        sinks = (None, None, None, None, form.sinks) if form.sinks is not None else ()  # after cos, sin, positions and bias
        output, present_key, present_value = onnx_ops.symbolic_multi_out(
            "com.microsoft::GroupQueryAttention",
            (heads_last(query), heads_last(key), heads_last(value), *self.past, self.last_positions, self.total, *sinks),
            attributes,
            dtypes=(query.dtype,) * 3,
            shapes=((batch, new, heads * size), self.past[0].shape, self.past[1].shape),
            version=1,
        )
        self.present = (present_key, present_value)
        return output.view(batch, new, heads, size).transpose(1, 2)


class StandardLayer:
    """ONNX `Attention`: the present is the past with the new keys and values appended."""

    def __init__(self, past: tuple[Tensor, Tensor], visible: Callable[[AttentionForm], Tensor]) -> None:
        self.past, self.visible = past, visible
        self.present: Presents | None = None

    def presents(self) -> Presents:
        """Past and new, concatenated."""
        return attended(self.present)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        """See `attention.cached_attention`."""
        if form.sinks is not None:
            return self.attend_with_sinks(query, key, value, form, form.sinks)
        mask = self.visible(form)
        shapes = [(*part.shape[:2], mask.shape[3], part.shape[3]) for part in (key, value)]
        output, *present = standard_attention((query, key, value, mask, *self.past), form, presents=shapes)
        self.present = (present[0], present[1])
        return output

    def attend_with_sinks(self, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm, sinks: Tensor) -> Tensor:
        """A sink becomes a further column: a key and a value of zeros, whose score is the mask's bias."""
        key, value = torch.cat([self.past[0], key], dim=2), torch.cat([self.past[1], value], dim=2)
        self.present = (key, value)
        nothing_key, nothing_value = torch.zeros_like(key[:, :, :1]), torch.zeros_like(value[:, :, :1])
        visible, heads = self.visible(form), query.shape[1]
        bias = torch.where(visible, 0.0, HIDDEN).expand(-1, heads, -1, -1)
        column = sinks.reshape(1, heads, 1, 1).expand(bias.shape[0], -1, bias.shape[2], 1)
        joined = (torch.cat([nothing_key, key], dim=2), torch.cat([nothing_value, value], dim=2))
        return standard_attention((query, *joined, torch.cat([column, bias], dim=3)), form, presents=[])[0]


def standard_attention(
    inputs: tuple[Tensor, ...], form: AttentionForm, *, presents: list[tuple[int | torch.SymInt, ...]]
) -> Sequence[Tensor]:
    """ONNX `Attention` of query, key, value, mask and the past, if any; returns its output and presents of these shapes.

    `torch.onnx.ops.attention` is not used because it assumes values of the keys' size.
    """
    query, value = inputs[0], inputs[2]
    attributes: dict[str, Any] = {}
    if form.scale is not None:
        attributes["scale"] = float(form.scale)
    if form.softcap:
        attributes["softcap"] = float(form.softcap)
    shapes = [(*query.shape[:3], value.shape[3]), *presents]
    return onnx_ops.symbolic_multi_out(
        "::Attention", inputs, attributes, dtypes=(query.dtype,) * len(shapes), shapes=shapes, version=23
    )


def positions_from_mask(attention_mask: Tensor, new: int) -> Tensor:
    """Positions [batch, new] of the new tokens: the number of real tokens before each; correct for padding on either side."""
    counts = attention_mask.cumsum(1)[:, attention_mask.shape[1] - new :]
    return (counts - 1).clamp(min=0)


def of_one_picture(of_picture: Tensor) -> Tensor:
    """Which of the tokens [batch, new] are of the same picture, all of whose tokens follow each other: [batch, new, new]."""
    counted = of_picture.long()
    begins = counted * (1 - nn.functional.pad(counted, (1, -1)))
    numbers = begins.cumsum(1) * counted  # from 1; of text 0
    return (numbers[:, :, None] == numbers[:, None]) & of_picture[:, :, None]


def make_visibility(attention_mask: Tensor, new: int) -> Callable[[AttentionForm], Tensor]:
    """A function from window and chunk to the boolean mask [batch, 1, new, total], which makes each mask once.

    Every token sees itself, even padding: a row with only masked scores would become NaN and spread.
    """
    total = attention_mask.shape[1]
    made: dict[tuple[int | None, int | None], Tensor] = {}

    def make(form: AttentionForm) -> Tensor:
        keys, queries = torch.arange(total)[None, :], torch.arange(new)[:, None] + (total - new)
        seen = (keys <= queries)[None]
        if (of_picture := BIDIRECTIONAL.get()) is not None:
            seen = seen | nn.functional.pad(of_one_picture(of_picture), (total - new, 0))
        if form.window:
            seen = seen & (keys > queries - form.window)
        allowed = seen & attention_mask.bool()[:, None]  # [batch, new, total]
        if form.chunk:
            chunks = (
                positions_from_mask(attention_mask, total) // form.chunk
            )  # chunks are counted from the text, not from its padding
            allowed = allowed & (chunks[:, None, :] == chunks[:, total - new :, None])
        return (allowed | (keys == queries)[None])[:, None]

    def visible(form: AttentionForm) -> Tensor:
        key = (form.window, form.chunk)
        if key not in made:
            made[key] = make(form)
        return made[key]

    return visible


def make_traced_layers(
    target: Target, pasts: list[tuple[Tensor, Tensor]], attention_mask: Tensor, new: int, *, in_place: bool = True
) -> list[TracedLayer]:
    """The layers' caches of one traced call; pasts: [batch, kv_heads, past or capacity, head_size] twice per layer.

    `in_place=False` uses the standard operator at every target, for what GroupQueryAttention cannot do.
    """
    if target == "standard" or not in_place:
        visible = make_visibility(attention_mask, new)
        return [StandardLayer(past, visible) for past in pasts]
    last_positions = (attention_mask.sum(1) - 1).to(torch.int32)
    total = torch.scalar_tensor(attention_mask.shape[1], dtype=torch.int32)
    return [GroupQueryLayer(past, last_positions, total) for past in pasts]
