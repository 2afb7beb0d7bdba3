"""The two ONNX forms of attention over a cache, written into the graph while it is traced.

`ort` is ONNX Runtime's GroupQueryAttention, which updates one shared key/value buffer in place; `standard` is the Attention
operator of ONNX opset 23 with growing caches, in every conforming runtime. Both stand in for `attention.EagerLayer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.onnx.ops as onnx_ops
from torch import Tensor

from onnx_textgen.artifact import Target

from .attention import LayerCache
from .errors import ExportError

Presents = tuple[Tensor, Tensor]


class TracedLayer(LayerCache, Protocol):
    """A `LayerCache` that knows the layer's present key and value once it has attended."""

    def presents(self) -> Presents:
        """The cache after the call, in the target's layout."""
        ...


def attended(present: Presents | None) -> Presents:
    """The presents of a layer, or a clear error where the decoder never used it."""
    if present is None:
        raise ExportError("a layer of the decoder did not attend while it was traced; does the module skip layers?")
    return present


def heads_last(x: Tensor) -> Tensor:
    """[batch, heads, new, size] -> [batch, new, heads * size], the layout GroupQueryAttention reads."""
    return x.transpose(1, 2).flatten(2)


class GroupQueryLayer:
    """`com.microsoft::GroupQueryAttention`; the past is a buffer of any capacity, of which `lengths` tokens count.

    Several new tokens over a past work at batch 1 only; that is the operator's limit and the runtime's business.
    """

    def __init__(self, past: tuple[Tensor, Tensor], last_positions: Tensor, total: Tensor) -> None:
        self.past, self.last_positions, self.total = past, last_positions, total
        self.present: Presents | None = None

    def presents(self) -> Presents:
        """The shared buffers after the call."""
        return attended(self.present)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, window: int | None, softcap: float | None
    ) -> Tensor:
        """See `attention.cached_attention`."""
        batch, heads, new, size = query.shape
        attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": key.shape[1]}
        if scale is not None:
            attributes["scale"] = float(scale)
        if window:
            attributes["local_window_size"] = int(window)
        if softcap:
            attributes["softcap"] = float(softcap)
        output, present_key, present_value = onnx_ops.symbolic_multi_out(
            "com.microsoft::GroupQueryAttention",
            (heads_last(query), heads_last(key), heads_last(value), *self.past, self.last_positions, self.total),
            attributes,
            dtypes=(query.dtype,) * 3,
            shapes=((batch, new, heads * size), self.past[0].shape, self.past[1].shape),
            version=1,
        )
        self.present = (present_key, present_value)
        return output.view(batch, new, heads, size).transpose(1, 2)


class StandardLayer:
    """ONNX `Attention`: the past is as long as it is, the present is one piece longer."""

    def __init__(self, past: tuple[Tensor, Tensor], visible: Callable[[int | None], Tensor]) -> None:
        self.past, self.visible = past, visible
        self.present: Presents | None = None

    def presents(self) -> Presents:
        """Past and new, joined."""
        return attended(self.present)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, window: int | None, softcap: float | None
    ) -> Tensor:
        """See `attention.cached_attention`."""
        output, present_key, present_value, _ = onnx_ops.attention(
            query, key, value, self.visible(window), *self.past, scale=scale, softcap=softcap or 0.0
        )
        self.present = (present_key, present_value)
        return output


def positions_from_mask(attention_mask: Tensor, new: int) -> Tensor:
    """Positions [batch, new] of the new tokens: how many real tokens lie before each; right for padding on either side."""
    counts = attention_mask.cumsum(1)[:, attention_mask.shape[1] - new :]
    return (counts - 1).clamp(min=0)


def make_visibility(attention_mask: Tensor, new: int) -> Callable[[int | None], Tensor]:
    """A function from window to the boolean mask [batch, 1, new, total], each made once.

    A token always sees itself, padding too: a row of nothing but masked scores would turn into NaN and spread.
    """
    total = attention_mask.shape[1]
    made: dict[int | None, Tensor] = {}

    def visible(window: int | None) -> Tensor:
        if window not in made:
            keys, queries = torch.arange(total)[None, :], torch.arange(new)[:, None] + (total - new)
            seen = keys <= queries
            if window:
                seen = seen & (keys > queries - window)
            made[window] = (seen[None] & attention_mask.bool()[:, None] | (keys == queries)[None])[:, None]
        return made[window]

    return visible


def make_traced_layers(target: Target, pasts: list[tuple[Tensor, Tensor]], attention_mask: Tensor, new: int) -> list[TracedLayer]:
    """The layers' caches of one traced call; pasts: [batch, kv_heads, past or capacity, head_size] twice per layer."""
    if target == "standard":
        visible = make_visibility(attention_mask, new)
        return [StandardLayer(past, visible) for past in pasts]
    last_positions = (attention_mask.sum(1) - 1).to(torch.int32)
    total = torch.scalar_tensor(attention_mask.shape[1], dtype=torch.int32)
    return [GroupQueryLayer(past, last_positions, total) for past in pasts]
