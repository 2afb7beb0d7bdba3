"""Attention over a key/value cache: one function, whose form the cache decides.

`cached_attention` is what a decoder calls. With no cache it is plain causal attention, with a `KeyValueCache` it is eager
attention over everything fed so far, and while exporting the exporter passes caches that write the ONNX operator of the chosen
target instead (see `targets`). Positions (rotary and others) are the caller's business.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor


class LayerCache(Protocol):
    """One layer's keys and values so far."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, window: int | None, softcap: float | None
    ) -> Tensor:
        """Join `key` and `value` to the cache and attend over all of it; shapes as in `cached_attention`."""
        ...


def cached_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache: LayerCache | None = None,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention of new tokens over the cache and themselves.

    query: [batch, heads, new, head_size]; key, value: [batch, kv_heads, new, head_size], where `heads` is a multiple of
    `kv_heads` (grouped-query attention, Ainslie et al. 2023). Returns [batch, heads, new, head_size].

    `scale` defaults to 1/sqrt(head_size). `window` lets a token see only that many tokens, itself included (Mistral).
    `softcap` bounds the scores to `softcap * tanh(score / softcap)` (Gemma 2).
    """
    if cache is None:
        return causal_attention(query, key, value, scale=scale, window=window, softcap=softcap)
    return cache.attend(query, key, value, scale=scale, window=window, softcap=softcap)


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, window: int | None, softcap: float | None
) -> Tensor:
    """Eager attention of the last `new` of `total` tokens; key, value: [batch, kv_heads, total, head_size]."""
    new, total = query.shape[2], key.shape[2]
    if new == total and not window and not softcap:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
    visible = torch.ones(new, total, dtype=torch.bool, device=query.device).tril(total - new)
    if window:
        visible = visible.triu(total - new - window + 1)
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(2, 3) * (scale if scale is not None else 1 / math.sqrt(query.shape[3]))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    return scores.masked_fill(~visible, -math.inf).softmax(dim=-1) @ value


class EagerLayer:
    """A `LayerCache` that keeps its tensors by concatenation."""

    def __init__(self) -> None:
        self.key: Tensor | None = None  # [batch, kv_heads, so far, head_size]
        self.value: Tensor | None = None
        self.heads = 0
        """Query heads of the last call."""
        self.window: int | None = None
        """Window of the last call."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, window: int | None, softcap: float | None
    ) -> Tensor:
        """See `LayerCache.attend`."""
        self.key = key = key if self.key is None else torch.cat([self.key, key], dim=2)
        self.value = value = value if self.value is None else torch.cat([self.value, value], dim=2)
        self.heads, self.window = query.shape[1], window
        return causal_attention(query, key, value, scale=scale, window=window, softcap=softcap)


class KeyValueCache:
    """One `EagerLayer` per layer, made when first asked for; for running a decoder in PyTorch."""

    def __init__(self) -> None:
        self.layers: dict[int, EagerLayer] = {}

    def __getitem__(self, index: int) -> EagerLayer:
        return self.layers.setdefault(index, EagerLayer())

    def __len__(self) -> int:
        return len(self.layers)
