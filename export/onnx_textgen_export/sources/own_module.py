"""A `Source` from a module of the user's own, by the names that its `forward` takes.

`cache` is one `LayerCache` per layer, for attention through `cached_attention`; `past_key_values` are pairs of tensors that the
module takes and returns by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from onnx_textgen.package.manifest import Target

from ..errors import ExportError
from .attention import KeyValueCache, LayerCache, RecordingLayer, recorded_weights
from .onnx_attention import make_traced_layers, positions_from_mask
from .output_layer import find_head
from .source import Source, context_length_of, fits_in_place, key_value_cache, make_geometry, windows_of

Pasts = list[tuple[Tensor, Tensor]]
"""Per layer, key and value [batch, kv_heads, past, head_size]."""
Caches = Sequence[LayerCache] | KeyValueCache
CachedForward = Callable[[Tensor, Tensor, Caches], Tensor]


def checked_logits(module: nn.Module, found: object) -> Tensor:
    """Return the logits of a module for two tokens; raises `ExportError` if it returned anything else."""
    if isinstance(found, Tensor) and found.ndim == 3 and tuple(found.shape[:2]) == (1, 2):
        return found
    what = f"a tensor {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
    raise ExportError(
        f"{type(module).__name__}.forward should return logits [batch, tokens, vocabulary], for every input token; "
        f"for two tokens it returned {what}"
    )


def checked_presents(module: nn.Module, found: object) -> list[Tensor]:
    """Keys and values, alternating, of the presents that a module returned; raises `ExportError` if they are no pairs."""
    pairs = list(found) if isinstance(found, list | tuple) else []
    if pairs and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        tensors = [tensor for pair in pairs for tensor in pair]
        if all(isinstance(tensor, Tensor) and tensor.ndim == 4 for tensor in tensors):
            return tensors
    raise ExportError(
        f"{type(module).__name__}.forward should return (logits, present_key_values), the second one pair (key, value) of "
        "[batch, kv_heads, tokens, head_size] per layer"
    )


def probe(module: nn.Module, forward: CachedForward) -> tuple[KeyValueCache, Tensor]:
    """Run two tokens through a decoder over an eager cache; returns the cache and the logits."""
    cache = KeyValueCache()
    with torch.no_grad():
        logits = checked_logits(module, forward(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]), cache))
    if not cache.layers:
        raise ExportError("the model's attention cannot be traced: no layer called cached_attention with the cache it was given")
    for index, layer in cache.layers.items():
        if layer.key is not None and layer.key.shape[2] != 2:
            raise ExportError(f"cache[{index}] was given to more than one attention; give each its own: cache[0], cache[1] ...")
    return cache, logits


def in_pairs(tensors: Sequence[Tensor]) -> Pasts:
    """Alternating keys and values -> (key, value) per layer."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def source_from_cached(
    module: nn.Module, forward: CachedForward, *, reference: Callable[[Tensor], Tensor], head: nn.Module | None, context_length: int
) -> Source:
    """A source whose attention goes through `cached_attention`; `forward` takes ids, positions and one cache per layer."""
    cache, logits = probe(module, forward)
    kept = [
        (index, layer.key, layer.value)
        for index, layer in sorted(cache.layers.items())
        if layer.key is not None and layer.value is not None
    ]
    if [index for index, _, _ in kept] != list(range(len(cache))):
        raise ExportError(f"the layers' caches are numbered {sorted(cache.layers)}; number them 0, 1, 2 ...")
    layers = [cache[index] for index in range(len(cache))]
    tensors, in_place = key_value_cache(kept), fits_in_place(layers)

    def call(target: Target, input_ids: Tensor, attention_mask: Tensor, pasts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        new = input_ids.shape[1]
        traced = make_traced_layers(target, in_pairs(pasts), attention_mask, new, in_place=in_place)
        logits = forward(input_ids, positions_from_mask(attention_mask, new), traced)
        return logits, [tensor for layer in traced for tensor in layer.presents()]

    def attentions(ids: Tensor, rows: int) -> list[Tensor]:
        watching = [RecordingLayer(rows) for _ in layers]
        forward(ids, torch.arange(ids.shape[1])[None], watching)
        return recorded_weights(watching)

    geometry = make_geometry(module, tensors, logits, heads=layers[0].heads, context_length=context_length)
    return Source(module, call, reference, head, geometry, windows_of(layers), tensors, attentions=attentions)


def source_from_plain(module: nn.Module, *, context_length: int) -> Source:
    """A source with its own attention code, which takes `past_key_values` and returns `(logits, present_key_values)`.

    Both hold one pair (key, value) of [batch, kv_heads, tokens, head_size] per layer; `past_key_values=None` is no past. The
    forward may also take `attention_mask` [batch, past + new] and `position_ids` [batch, new]. Its code is traced unchanged, so
    the cache grows in the way that the module concatenates past and new.
    """
    named = inspect.signature(module.forward).parameters

    def positions(input_ids: Tensor, attention_mask: Tensor, past: Pasts | None) -> Tensor:
        new = input_ids.shape[1]
        if "attention_mask" in named:
            return positions_from_mask(attention_mask, new)
        return (torch.arange(new) + (past[0][0].shape[2] if past else 0))[None]  # no padding without a mask

    def run(input_ids: Tensor, attention_mask: Tensor, past: Pasts | None) -> tuple[Tensor, list[Tensor]]:
        options: dict[str, Tensor] = {}
        if "attention_mask" in named:
            options["attention_mask"] = attention_mask
        if "position_ids" in named:
            options["position_ids"] = positions(input_ids, attention_mask, past)
        result = module(input_ids, past_key_values=past, **options)
        if not isinstance(result, tuple) or len(result) != 2:
            found = type(result).__name__
            raise ExportError(f"{type(module).__name__}.forward should return (logits, present_key_values), found {found}")
        logits, presents = result
        return logits, checked_presents(module, presents)

    def reference(ids: Tensor) -> Tensor:
        return run(ids, torch.ones_like(ids), None)[0]

    def call(target: Target, input_ids: Tensor, attention_mask: Tensor, pasts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        return run(input_ids, attention_mask, in_pairs(pasts))

    two = torch.tensor([[0, 1]])
    with torch.no_grad():
        logits, kept = run(two, torch.ones_like(two), None)
    checked_logits(module, logits)
    tensors = key_value_cache([(index, key, value) for index, (key, value) in enumerate(in_pairs(kept))])
    geometry = make_geometry(module, tensors, logits, heads=kept[0].shape[1], context_length=context_length)
    head = find_head(module, lambda: reference(two))
    return Source(module, call, reference, head, geometry, windows=(), cache=tensors)


def source_from_module(module: nn.Module, *, context_length: int | None = None) -> Source:
    """A source from a user's module, by the names its `forward` takes: `cache` or `past_key_values`."""
    named = inspect.signature(module.forward).parameters
    length = context_length_of(module, context_length)
    if "past_key_values" in named:
        return source_from_plain(module, context_length=length)
    if "cache" not in named:
        raise ExportError(
            f"{type(module).__name__}.forward takes {', '.join(named)}; it needs `cache` (attention through cached_attention) "
            "or `past_key_values` (its own attention code)"
        )

    def forward(input_ids: Tensor, position_ids: Tensor, cache: Caches) -> Tensor:
        options = {"position_ids": position_ids} if "position_ids" in named else {}
        logits: Tensor = module(input_ids, cache=cache, **options)
        return logits

    def reference(ids: Tensor) -> Tensor:
        options = {"position_ids": torch.arange(ids.shape[1])[None]} if "position_ids" in named else {}
        logits: Tensor = module(ids, cache=None, **options)
        return logits

    head = find_head(module, lambda: reference(torch.tensor([[0, 1]])))
    return source_from_cached(module, forward, reference=reference, head=head, context_length=length)
