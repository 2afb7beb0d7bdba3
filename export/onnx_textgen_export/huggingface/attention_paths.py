"""Two ways into a transformers model over a cache, and the choice between them.

`Fused` hands each layer's attention to one operator, `Own` traces the model's own code. A door is tried in PyTorch first, over a
cache, against the model's own uncached forward: the first that agrees is traced. No architecture is named.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from onnx_textgen.errors import first_line
from onnx_textgen.package.manifest import Target

from ..errors import ExportError
from ..sources.attention import EagerLayer, LayerCache, WatchedLayer, watched
from ..sources.onnx_attention import make_traced_layers, positions_from_mask
from ..sources.source import fits_in_place, windows_of
from .eager_attention import Kept, make_cache, presents, tensors_of
from .experts import EXPERTS, experts
from .fused_attention import ATTENTION, fused_run, pass_through
from .mask_kinds import VisibleKind
from .rotary_scaling import switch_of, traceable_rotary
from .torch_substitutes import OnnxStandIns

TOLERANCE = 1e-4
"""Largest difference of a logit between a door and the model itself, relative to the largest logit."""
SMALL_WINDOW = 512
"""A window up to this is crossed when a door is tried; longer ones are crossed by the proof alone."""

Run = Callable[[Tensor, Tensor, list[Tensor]], tuple[Tensor, list[Tensor]]]
"""input_ids, attention_mask and pasts -> logits and presents, in PyTorch."""

ALL_EXPERTS_FUNCTIONS.register(EXPERTS, experts)


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """A transformers model, and what a probe told of it."""

    module: PreTrainedModel
    kept: Kept
    named: frozenset[str]
    """The arguments that its forward takes."""

    @property
    def one_token(self) -> bool:
        """Whether a recurrent state is kept: it advances token by token."""
        return any(tensor.name.startswith("past_recurrent") for tensor in self.kept.tensors)

    def empty_pasts(self, rows: int) -> list[Tensor]:
        """The pasts before the first token."""
        lengths = {"batch": rows, "length": 0}
        return [
            torch.zeros([lengths[size] if isinstance(size, str) else size for size in tensor.shape]) for tensor in self.kept.tensors
        ]

    def logits(self, input_ids: Tensor, cache: Cache, attention: str, **options: object) -> Tensor:
        """Logits of the model over a cache, with an attention implementation and traceable experts."""
        given = {name: value for name, value in options.items() if name in self.named}
        given[self.kept.argument] = self.kept.wrapped(cache)
        with attention_as(self.module, attention), experts_as(self.module, EXPERTS), traceable_rotary(self.module), OnnxStandIns():
            logits: Tensor = self.module(input_ids=input_ids, use_cache=True, **given).logits
        return logits


@contextlib.contextmanager
def attention_as(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Run `model` with another attention implementation for a while."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextlib.contextmanager
def experts_as(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Run `model` with another implementation of its experts for a while, if it has any."""
    if not model._can_set_experts_implementation():
        yield
        return
    before = model.get_experts_implementation()
    model.set_experts_implementation(name)
    try:
        yield
    finally:
        model.set_experts_implementation(before)


class Fused:
    """The fused door; the first run classifies the masks, later ones replay what was found.

    Layers with states and no keys (convolutions, recurrences) keep their own code; a layer with both is not for this door.
    """

    name = "fused"
    position_offset = 0
    padding_id = None

    def __init__(self, model: Model) -> None:
        kinds = [{tensor.name.split(".")[0] for _, tensor in layer.tensors} for layer in model.kept.layers]
        if any("past_key_values" in kind and len(kind) > 1 for kind in kinds):
            raise ExportError("its layers keep states beside their keys and values")
        self.model = model
        self.attending = [layer.index for layer, kind in zip(model.kept.layers, kinds, strict=True) if "past_key_values" in kind]
        if not self.attending:
            raise ExportError("none of its layers attends")
        self.masks: list[VisibleKind] | None = None
        self.layers: list[EagerLayer] = []

    def split(self, pasts: list[Tensor]) -> tuple[list[tuple[Tensor, Tensor]], dict[int, Any]]:
        """Keys and values of the layers that attend, and cache layers for the others."""
        pairs, others, left = [], {}, iter(pasts)
        for layer in self.model.kept.layers:
            held = {path: next(left) for path, _ in layer.tensors}
            if layer.index in self.attending:
                pairs.append((held["key"], held["value"]))
            else:
                others[layer.index] = layer.layer(held)
        return pairs, others

    def forward(self, input_ids: Tensor, attention_mask: Tensor, layers: Sequence[LayerCache], others: dict[int, Any]) -> Tensor:
        """Logits, with the attention of each layer that attends handed to its entry of `layers`."""
        positions = positions_from_mask(attention_mask, input_ids.shape[1])
        cache = pass_through(dict(zip(self.attending, layers, strict=True)), others)
        with fused_run(self.masks) as run:
            logits = self.model.logits(input_ids, cache, ATTENTION, position_ids=positions)
        self.masks = self.masks or run.masks
        return logits

    def presents(self, pairs: Sequence[tuple[Tensor, ...]], others: dict[int, Any]) -> list[Tensor]:
        """What the layers hold after a run, in the order of the cache."""
        found, left = list[Tensor](), iter(pairs)
        for layer in self.model.kept.layers:
            if layer.index in self.attending:
                found += next(left)
            else:
                held = dict(tensors_of(others[layer.index]))
                found += [held[path] for path, _ in layer.tensors]
        return found

    def run(self, input_ids: Tensor, attention_mask: Tensor, pasts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """In PyTorch."""
        pairs, others = self.split(pasts)
        self.layers = [EagerLayer(*pair) for pair in pairs]
        logits = self.forward(input_ids, attention_mask, self.layers, others)
        return logits, self.presents([layer.tensors() for layer in self.layers], others)

    def attentions(self, input_ids: Tensor, rows: int) -> list[Tensor]:
        """In PyTorch; see `Source.attentions`."""
        _, others = self.split(self.model.empty_pasts(1))
        layers = [WatchedLayer(rows) for _ in self.attending]
        self.forward(input_ids, torch.ones_like(input_ids), layers, others)
        return watched(layers)

    def call(self, target: Target, input_ids: Tensor, attention_mask: Tensor, pasts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """While tracing."""
        pairs, others = self.split(pasts)
        layers = make_traced_layers(target, pairs, attention_mask, input_ids.shape[1], in_place=fits_in_place(self.layers))
        logits = self.forward(input_ids, attention_mask, layers, others)
        return logits, self.presents([layer.presents() for layer in layers], others)

    def windows(self) -> tuple[int, ...]:
        """The windows found."""
        return windows_of(self.layers)

    def heads(self) -> int:
        """Query heads of the first layer that attends."""
        return self.layers[0].heads


class Own:
    """The own-attention door; positions and padding are given, or left to the model."""

    name = "own"

    def __init__(self, model: Model, *, position_offset: int | None, knows_padding: bool = True) -> None:
        self.model, self.position_offset, self.knows_padding = model, position_offset, knows_padding

    @property
    def padding_id(self) -> int | None:
        """Positions that begin after the padding id come from code that gives padding none."""
        return self.position_offset - 1 if self.position_offset else None

    def run(self, input_ids: Tensor, attention_mask: Tensor, pasts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """In PyTorch and while tracing alike."""
        options: dict[str, object] = {"attention_mask": attention_mask} if self.knows_padding else {}
        if self.position_offset is not None:
            options["position_ids"] = positions_from_mask(attention_mask, input_ids.shape[1]) + self.position_offset
        cache = make_cache(self.model.kept, pasts)
        logits = self.model.logits(input_ids, cache, "eager", **options)
        return logits, presents(self.model.kept, cache)

    def call(self, target: Target, input_ids: Tensor, attention_mask: Tensor, pasts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """While tracing."""
        return self.run(input_ids, attention_mask, pasts)

    def windows(self) -> tuple[int, ...]:
        """What the config calls a window or a chunk: the model's own code makes the masks."""
        sizes = [self.config_value(name) for name in ("sliding_window", "attention_chunk_size", "window_size")]
        return tuple(sorted({size for size in sizes if size > 0}))

    def heads(self) -> int:
        """What the config says, informative as it is; 1 where the layers differ."""
        return self.config_value("num_attention_heads") or 1

    def config_value(self, name: str) -> int:
        """A number of the config, 0 where there is none or the layers differ in it."""
        try:
            found = getattr(self.model.module.config.get_text_config(decoder=True), name, None)
        except Exception:  # noqa: BLE001 - configs whose layers differ raise errors of their own
            return 0
        return found if isinstance(found, int) else 0


Door = Fused | Own


def doors(model: Model) -> Iterator[Callable[[], Door]]:
    """The ways in, the faster first."""
    yield lambda: Fused(model)
    if "position_ids" in model.named:
        yield lambda: Own(model, position_offset=0)
        paddings = {getattr(part, "padding_idx", None) for part in model.module.modules()}
        for padding in sorted(padding for padding in paddings if isinstance(padding, int)):
            yield lambda: Own(model, position_offset=padding + 1)  # noqa: B023 - called before the next is made
    yield lambda: Own(model, position_offset=None)
    yield lambda: Own(model, position_offset=None, knows_padding=False)  # a graph without a mask runs row by row


def difference(got: Tensor, want: Tensor) -> float:
    """Largest difference relative to the largest magnitude wanted; infinite where anything is not a number."""
    error = float((got - want).abs().max() / want.abs().max())
    return error if error == error else float("inf")  # noqa: PLR0124 - NaN


def fed_in_pieces(run: Run, pasts: list[Tensor], ids: Tensor, sizes: list[int]) -> Tensor:
    """Logits of ids [1, tokens] fed piece by piece over a cache."""
    parts, start = [], 0
    for size in sizes:
        logits, pasts = run(ids[:, start : start + size], torch.ones(1, start + size, dtype=torch.int64), pasts)
        parts.append(logits)
        start += size
    return torch.cat(parts, dim=1)


def check_door(door: Door, model: Model, reference: Callable[[Tensor], Tensor], context_length: int) -> None:
    """Raise `ExportError` where a door does not compute what the model does."""
    vocabulary = cast(nn.Embedding, model.module.get_input_embeddings()).num_embeddings
    generator = torch.Generator().manual_seed(0)
    pasts = model.empty_pasts(1)
    with torch.no_grad():
        if isinstance(door, Fused):
            door.run(torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2, dtype=torch.int64), pasts)  # finds the windows
        tokens = min(max(24, *(window + 8 for window in door.windows() if window <= SMALL_WINDOW), 0), context_length)
        tokens = max(min(tokens, switch_of(model.module, context_length) or tokens), 6)  # keys made before a switch end there
        sizes = [1] * 6 if model.one_token else [tokens - 4, 3, 1]
        ids = torch.randint(0, vocabulary, (1, sum(sizes)), generator=generator)
        if door.padding_id is not None:
            ids[ids == door.padding_id] += 1
        error = difference(fed_in_pieces(door.run, pasts, ids, sizes), reference(ids))
        if error > TOLERANCE:
            raise ExportError(f"over a cache its logits differ from its own by {error:.1e}")
        if isinstance(door, Own) and door.knows_padding and not model.one_token:
            check_padding(door, model, ids, reference)


def check_padding(door: Own, model: Model, ids: Tensor, reference: Callable[[Tensor], Tensor]) -> None:
    """Two rows, the second shorter and padded on its left, as they lie in the runtime's cache."""
    short = ids[:, 5:]
    rows = torch.cat([ids, torch.cat([torch.zeros_like(ids[:, :5]), short], dim=1)])
    mask = torch.ones_like(rows)
    mask[1, :5] = 0
    logits, _ = door.run(rows, mask, model.empty_pasts(2))
    error = difference(logits[1, -1], reference(short)[0, -1])
    if error > TOLERANCE:
        raise ExportError(f"beside a longer text its logits differ by {error:.1e}: positions or masks ignore the padding")


def choose_door(model: Model, reference: Callable[[Tensor], Tensor], context_length: int) -> Door:
    """The first door that computes what the model does; raises `ExportError` with the last reason against."""
    reason = ""
    for make in doors(model):
        try:
            door = make()
            check_door(door, model, reference, context_length)
        except ExportError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - whatever the model's code raises, this door is not for it
            reason = f"its own code fails over a cache that grows ({first_line(error)})"
        else:
            return door
    raise ExportError(f"{type(model.module).__name__} cannot be exported: {reason}")
