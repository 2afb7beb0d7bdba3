"""The eager path: a transformers decoder traced with its own attention and mask code over a growing cache.

The cache is a transformers `Cache` whose layers hold the graph's past tensors and append the new keys and values. A probe finds
what each layer keeps: keys and values, states of convolutions and recurrences, an indexer's keys. Nothing here knows an
architecture. The model's own code makes the mask, from the attention mask and the lengths that the cache reports.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, cache_utils
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    EncoderDecoderCache,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from ..errors import ExportError
from ..sources.source import CacheTensor
from .own_states import InArgument, InCache, InLayers, OwnStates, attributes_of
from .recurrent_functions import CURRENT

EmptyLayer: Any = getattr(cache_utils, "DummyLayer", DynamicLayer)
"""transformers' class for a layer that keeps nothing: a class for that purpose since 5.23, before that one that stays empty."""

PROBE_ROWS, PROBE_TOKENS = 2, 3
CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""What a model calls its cache, as an argument and in its output; since transformers 5.24 every model says `cache`."""
STATES_NAME = "state"
"""Name of the states that a model without a cache takes and returns."""


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # as are all ignored here: transformers' caches are half typed
    """Past keys and values, to which an update appends the new ones; a window is left to the mask."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values, self.is_initialized = key, value, True
        self.device = key.device

    def get_seq_length(self) -> int:
        """Tokens held, also if none: there is no branch on the length."""
        length: int = cast(Tensor, self.keys).shape[-2]
        return length


class IndexedLayer(GrowingLayer):  # type: ignore[no-untyped-call]
    """A layer that also keeps the keys of an indexer."""

    def __init__(self, key: Tensor, value: Tensor, indexer_keys: Tensor) -> None:
        super().__init__(key, value)
        self.indexer_keys = indexer_keys
        self.indexer_position_ids: Tensor | None = None

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        """Append the new indexer keys [batch, new, size] to the past ones."""
        self.indexer_keys = torch.cat([self.indexer_keys, indexer_key_states], dim=1)
        return self.indexer_keys


class StateLayer(LinearAttentionLayer):
    """Convolution and recurrent states; an update replaces them instead of writing into them: they are inputs of the graph."""

    def __init__(self, conv: dict[int, Tensor], recurrent: dict[int, Tensor]) -> None:
        count = max([0, *conv, *recurrent]) + 1
        LinearAttentionLayer.__init__(self, number_of_states=count)
        self.take(conv, recurrent)

    def take(self, conv: dict[int, Tensor], recurrent: dict[int, Tensor]) -> None:
        """Start from these states."""
        for index, state in conv.items():
            self.conv_states[index], self.is_conv_states_initialized[index] = state, True
            self.conv_kernel_size[index] = state.shape[-1]
        for index, state in recurrent.items():
            self.recurrent_states[index], self.is_recurrent_states_initialized[index] = state, True
        self.has_previous_state = dict.fromkeys(self.has_previous_state, True)

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **_: object
    ) -> Tensor:
        """Append the new inputs of the convolution to the held ones; returns all, keeps the last.

        Within `own_recurrences` the convolution does that.
        """
        if (run := CURRENT.get()) is not None:
            run.enter(self.conv_states, self.recurrent_states, state_idx)
            return conv_states
        held = cast(Tensor, self.conv_states[state_idx])
        joined = torch.cat([held, conv_states], dim=-1)
        self.conv_states[state_idx] = joined[..., -held.shape[-1] :]
        return joined

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **_: object) -> Tensor:
        """Keep the new state."""
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states


class HybridLayer(StateLayer, GrowingLayer):  # type: ignore[misc, override, no-untyped-call]
    """A layer with states and with keys and values."""

    def __init__(self, key: Tensor, value: Tensor, conv: dict[int, Tensor], recurrent: dict[int, Tensor]) -> None:
        GrowingLayer.__init__(self, key, value)
        StateLayer.__init__(self, conv, recurrent)
        self.keys, self.values, self.is_initialized = key, value, True


@dataclasses.dataclass(frozen=True, slots=True)
class LayerCacheLayout:
    """Tensors that one layer keeps between runs, each by its path within the layer."""

    index: int
    tensors: tuple[tuple[str, CacheTensor], ...]
    """("key", ...), ("value", ...), ("indexer", ...), ("conv.0", ...), ("recurrent.0", ...)"""

    def layer(self, held: dict[str, Tensor]) -> CacheLayerMixin | LinearAttentionCacheLayerMixin:
        """A cache layer over the tensors held."""
        conv = {int(path[5:]): tensor for path, tensor in held.items() if path.startswith("conv.")}
        recurrent = {int(path[10:]): tensor for path, tensor in held.items() if path.startswith("recurrent.")}
        if "indexer" in held:
            return IndexedLayer(held["key"], held["value"], held["indexer"])
        if "key" in held and (conv or recurrent):
            return HybridLayer(held["key"], held["value"], conv, recurrent)
        if "key" in held:
            return GrowingLayer(held["key"], held["value"])
        return StateLayer(conv, recurrent) if held else EmptyLayer()


def tensors_of(layer: object) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a layer of a transformers cache, by path."""
    for path, attribute in (("key", "keys"), ("value", "values"), ("indexer", "indexer_keys")):
        if isinstance(found := getattr(layer, attribute, None), Tensor):
            yield path, found
    for part in ("conv", "recurrent"):
        for index, state in getattr(layer, f"{part}_states", {}).items():
            if isinstance(state, Tensor):
                yield f"{part}.{index}", state


def describe(index: int, path: str, tensor: Tensor) -> CacheTensor:
    """Name and shape of a cached tensor, after a probe of `PROBE_ROWS` rows and `PROBE_TOKENS` tokens."""
    shape = tuple(tensor.shape)
    if shape[0] != PROBE_ROWS or not tensor.is_floating_point():
        raise ExportError(
            f"layer {index} keeps {path.split('.', maxsplit=1)[0]} tensors of {tensor.dtype} {shape}, which cannot be exported"
        )
    if path in {"key", "value"}:
        return CacheTensor(f"past_key_values.{index}.{path}", f"present.{index}.{path}", ("batch", shape[1], "length", *shape[3:]))
    if path == "indexer":
        return CacheTensor(f"past_indexer.{index}", f"present_indexer.{index}", ("batch", "length", *shape[2:]))
    part, _, state = path.partition(".")
    suffix = f"{index}" if state == "0" else f"{index}.{state}"
    return CacheTensor(f"past_{part}.{suffix}", f"present_{part}.{suffix}", ("batch", *shape[1:]))


def check_known(index: int, layer: object) -> None:
    """Raise `ExportError` for a layer whose cache class is not of transformers' own cache module."""
    if type(layer).__module__ != CacheLayerMixin.__module__:
        raise ExportError(f"layer {index} keeps a cache of another class, {type(layer).__name__}, which cannot be traced")


@dataclasses.dataclass(frozen=True, slots=True)
class CacheLayout:
    """Tensors that a model keeps between runs."""

    argument: str
    """The argument of the forward that takes the cache."""
    layers: tuple[LayerCacheLayout, ...]
    has_cross_attention: bool
    """The model expects a cache with room for an encoder's keys and values too."""
    own: OwnStates | None = None
    """States that the model looks for elsewhere than in the layers of its cache."""

    @property
    def tensors(self) -> tuple[CacheTensor, ...]:
        """Every cached tensor, in order."""
        return tuple(tensor for layer in self.layers for _, tensor in layer.tensors)

    @contextlib.contextmanager
    def lent(self, model: PreTrainedModel, cache: Cache) -> Iterator[object]:
        """Within the context, the model finds what `cache` holds in what it takes as its cache, which this gives."""
        if self.own is not None:
            with self.own.lent(model, cache) as given:
                yield given
        else:
            yield EncoderDecoderCache(cache, DynamicCache()) if self.has_cross_attention else cache


def made_cache(model: PreTrainedModel, named: Sequence[str]) -> tuple[str, Cache | EncoderDecoderCache, OwnStates | None]:
    """The argument that takes what a model keeps; its cache, made by itself or by transformers; states that it keeps elsewhere."""
    name = next((name for name in (*CACHE_NAMES, STATES_NAME) if name in named), None)
    if name is None:
        raise ExportError(f"{type(model).__name__} keeps no key/value cache that transformers knows")
    ids = torch.arange(PROBE_ROWS * PROBE_TOKENS).reshape(PROBE_ROWS, PROBE_TOKENS)
    before = attributes_of(model)
    with torch.no_grad():
        cache = getattr(model(input_ids=ids, use_cache=True), name, None)
        if name == STATES_NAME and isinstance(cache, list):
            return name, Cache(layers=[]), InArgument(cache)
        own: OwnStates | None = None if cache is None else InCache.found(cache)
        if own is not None:
            return name, cache if isinstance(cache, Cache) else Cache(layers=[]), own
        if not isinstance(cache, (Cache, EncoderDecoderCache)):
            cache = DynamicCache(config=model.config.get_text_config(decoder=True))
            model(input_ids=ids, use_cache=True, **{name: cache})
        paths = {path for layer in self_attention_of(cache).layers for path, _ in tensors_of(layer)}
        has_states = any(path.startswith(("conv", "recurrent")) for path in paths)
        own = InLayers.found(model, before) if model._is_stateful and not has_states else None
    if own is None and not paths:
        raise ExportError(f"{type(model).__name__} keeps no key/value cache that transformers knows")
    return name, cache, own


def self_attention_of(cache: Cache | EncoderDecoderCache) -> Cache:
    """The cache of the text itself."""
    return cast(Cache, cast(Any, cache).self_attention_cache) if isinstance(cache, EncoderDecoderCache) else cache


def probe_cache(model: PreTrainedModel, named: Sequence[str]) -> CacheLayout:
    """Run a few tokens, and find out what each layer keeps in the cache or elsewhere."""
    name, cache, own = made_cache(model, named)
    has_cross_attention, cache = isinstance(cache, EncoderDecoderCache), self_attention_of(cache)
    elsewhere = {} if own is None else own.tensors()
    layers = []
    for index in range(max([len(cache.layers), *(layer + 1 for layer in elsewhere)])):
        layer = cache.layers[index] if index < len(cache.layers) else EmptyLayer()
        check_known(index, layer)
        found = [*tensors_of(layer), *((f"recurrent.{number}", state) for number, state in enumerate(elsewhere.get(index, ())))]
        layers.append(LayerCacheLayout(index, tuple((path, describe(index, path, tensor)) for path, tensor in found)))
    if not any(layer.tensors for layer in layers):
        raise ExportError(f"{type(model).__name__} keeps nothing between runs")
    return CacheLayout(name, tuple(layers), has_cross_attention, own)


def with_own_convolutions(layout: CacheLayout) -> CacheLayout:
    """The layout with the states of convolutions as `recurrent_functions` keeps them: [batch, width - 1, channels]."""

    def changed(path: str, tensor: CacheTensor) -> CacheTensor:
        if not path.startswith("conv."):
            return tensor
        batch, channels, width = tensor.shape
        return dataclasses.replace(tensor, shape=(batch, int(width) - 1, channels))

    layers = [
        dataclasses.replace(layer, tensors=tuple((path, changed(path, tensor)) for path, tensor in layer.tensors))
        for layer in layout.layers
    ]
    return dataclasses.replace(layout, layers=tuple(layers))


def make_cache(layout: CacheLayout, pasts: Sequence[Tensor]) -> Cache:
    """A cache over the graph's past tensors, given in the order of the layers' tensors."""
    left = iter(pasts)
    return Cache(layers=[layer.layer({path: next(left) for path, _ in layer.tensors}) for layer in layout.layers])


def presents(layout: CacheLayout, cache: Cache) -> list[Tensor]:
    """Return the cache tensors of the layers after a run, in the same order."""
    found = []
    for layer, now in zip(layout.layers, cache.layers, strict=True):
        held = dict(tensors_of(now))
        found += [held[path] for path, _ in layer.tensors]
    return found
