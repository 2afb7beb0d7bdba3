"""The fused path: a transformers decoder whose attention goes through `AttentionInterface`, handed to `cached_attention`.

transformers accepts a registered attention function, a registered mask function, and any cache object. The cache object registered
here passes the new keys and values of each layer through, the mask function returns only which kind of mask was asked for, and the
attention function gives both to `cached_attention`, which becomes one operator. What this path does not support raises
`ExportError`; the eager path may still take the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicLayer

from ..errors import ExportError
from ..sources.attention import LayerCache, cached_attention
from .mask_kinds import MaskFunction, VisibleKind, classify

ATTENTION = "onnx_textgen"
HARMLESS = frozenset({"position_ids", "cache_position"})
"""Arguments of an attention that repeat what the cache and the mask already know."""


class FusedRun:
    """One forward pass: the layer that attends next, and the masks asked for so far."""

    def __init__(self, known_masks: list[VisibleKind] | None) -> None:
        self.current: LayerCache | None = None
        self.known_masks = known_masks
        self.masks: list[VisibleKind] = []

    def next_mask(self, mask: MaskFunction, local_size: int | None) -> VisibleKind:
        """The kind of the mask asked for; while tracing, where a mask cannot be evaluated, the kind that the probe found."""
        if self.known_masks is None:
            self.masks.append(classify(mask, local_size))
        elif len(self.masks) < len(self.known_masks):
            self.masks.append(self.known_masks[len(self.masks)])
        else:
            raise ExportError("the model asks for other masks while it is traced than before")
        return self.masks[-1]


CURRENT: ContextVar[FusedRun] = ContextVar("onnx_textgen_fused_run")


@contextlib.contextmanager
def fused_run(known_masks: list[VisibleKind] | None = None) -> Iterator[FusedRun]:
    """The context of one forward pass through the fused path."""
    run = FusedRun(known_masks)
    token = CURRENT.set(run)
    try:
        yield run
    finally:
        CURRENT.reset(token)


class PassThroughLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # transformers' caches are half typed
    """A cache layer that returns only the new keys and values, and notes that this layer attends next."""

    def __init__(self, cache: LayerCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cache, self.is_initialized = cache, True

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Return only the new keys and values."""
        CURRENT.get().current = self.cache
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Zero: positions are given explicitly, and only the operator sees the past."""
        return 0


def pass_through(layers: Mapping[int, LayerCache], others: Mapping[int, Any]) -> Cache:
    """A cache whose `layers` attend through the interface; `others` are complete cache layers."""
    count = len(layers) + len(others)
    return Cache(layers=[PassThroughLayer(layers[index]) if index in layers else others[index] for index in range(count)])


def attention(  # noqa: PLR0917 - the signature is transformers'
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: VisibleKind | Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **rest: object,
) -> tuple[Tensor, None]:
    """transformers' attention signature -> `cached_attention`; returns [batch, new, heads, head_size]."""
    layer, CURRENT.get().current = CURRENT.get().current, None
    name = type(module).__name__
    if unknown := [name for name, value in rest.items() if isinstance(value, Tensor) and name not in HARMLESS]:
        raise ExportError(f"{name} gives its attention {unknown[0]}, which the attention operators do not take")
    if layer is None:
        raise ExportError(f"{name} attends without updating the cache")
    if isinstance(attention_mask, Tensor) or (attention_mask is not None and attention_mask.kind == "unknown"):
        raise ExportError(f"{name} attends with a mask of another kind than causal, window or chunk")
    window, chunk = sliding_window, None
    if attention_mask is not None:
        window, chunk = attention_mask.window, attention_mask.chunk
    output = cached_attention(query, key, value, layer, scale=scaling, window=window, chunk=chunk, softcap=softcap, sinks=s_aux)
    return output.transpose(1, 2).contiguous(), None


def mask_kind(*_: object, mask_function: MaskFunction, local_size: int | None = None, **__: object) -> VisibleKind:
    """Replaces the function that makes a mask: returns its kind, because the target's operator does the masking."""
    return CURRENT.get().next_mask(mask_function, local_size)


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, mask_kind)
