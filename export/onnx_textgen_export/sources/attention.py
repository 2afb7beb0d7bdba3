"""Attention over a key/value cache: one function, whose form the cache decides.

`cached_attention` is what a decoder calls. With no cache it is plain causal attention, with a `KeyValueCache` it is eager
attention over everything fed so far, and while exporting the exporter passes caches that write the ONNX operator of the chosen
target instead (see `onnx_attention`). Positions (rotary and others) are left to the caller.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionForm:
    """Options of a layer's attention; see `cached_attention`."""

    scale: float | None = None
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    def __post_init__(self) -> None:
        for name, size in (("window", self.window), ("chunk", self.chunk)):
            if size is not None and size < 0:
                raise ValueError(f"an attention's {name} should be a number of tokens, or None, found {size}")


PLAIN = AttentionForm()


class LayerCache(Protocol):
    """One layer's keys and values so far."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        """Append `key` and `value` to the cache and attend over all of it; shapes as in `cached_attention`."""
        ...


def cached_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache: LayerCache | None = None,
    *,
    scale: float | None = None,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of new tokens over the cache and themselves.

    query: [batch, heads, new, head_size]; key, value: [batch, kv_heads, new, head_size], where `heads` is a multiple of
    `kv_heads` (grouped-query attention, Ainslie et al. 2023). Returns [batch, heads, new, head_size], with the head size of `value`
    if that differs.

    `scale` defaults to 1/sqrt(head_size). `window` lets a token see only that many tokens, itself included (Mistral).
    `chunk` splits the text into chunks of that many tokens; a token sees only its own chunk (Llama 4).
    `softcap` bounds the scores to `softcap * tanh(score / softcap)` (Gemma 2).
    `sinks` [heads] are scores of an absent token: they take part in the softmax and contribute nothing (gpt-oss).
    """
    form = AttentionForm(scale=scale, window=window, chunk=chunk, softcap=softcap, sinks=sinks)
    if cache is None:
        return causal_attention(query, key, value, form)
    return cache.attend(query, key, value, form)


def visible_columns(new: int, total: int, form: AttentionForm, device: torch.device) -> Tensor:
    """Which of `total` tokens each of the last `new` sees: bool [new, total]."""
    queries, keys = torch.arange(total - new, total, device=device)[:, None], torch.arange(total, device=device)[None]
    visible = keys <= queries
    if form.window:
        visible = visible & (keys > queries - form.window)
    if form.chunk:
        visible = visible & (keys // form.chunk == queries // form.chunk)
    return visible


def causal_attention(query: Tensor, key: Tensor, value: Tensor, form: AttentionForm = PLAIN) -> Tensor:
    """Eager attention of the last `new` of `total` tokens; key, value: [batch, kv_heads, total, head_size]."""
    new, total = query.shape[2], key.shape[2]
    if new == total and dataclasses.replace(form, scale=None) == PLAIN:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=form.scale, enable_gqa=True
        )
    return attention_weights(query, key, form) @ value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)


def attention_weights(query: Tensor, key: Tensor, form: AttentionForm) -> Tensor:
    """Attention weights of the last `new` tokens over all `total`: [batch, heads, new, total], after softmax."""
    new, total = query.shape[2], key.shape[2]
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = query @ key.transpose(2, 3) * (form.scale if form.scale is not None else 1 / math.sqrt(query.shape[3]))
    if form.softcap:
        scores = form.softcap * torch.tanh(scores / form.softcap)
    scores = scores.masked_fill(~visible_columns(new, total, form, query.device), -math.inf)
    if form.sinks is not None:
        sinks = form.sinks.reshape(1, -1, 1, 1).expand(query.shape[0], -1, new, 1)
        return torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
    return scores.softmax(dim=-1)


class EagerLayer:
    """A `LayerCache` that keeps its tensors by concatenation."""

    def __init__(self, key: Tensor | None = None, value: Tensor | None = None) -> None:
        self.key = key  # [batch, kv_heads, so far, head_size]
        self.value = value
        self.heads = 0
        """Query heads of the last call."""
        self.form = PLAIN
        """Options of the last call."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        """See `LayerCache.attend`."""
        self.key = key = key if self.key is None else torch.cat([self.key, key], dim=2)
        self.value = value = value if self.value is None else torch.cat([self.value, value], dim=2)
        self.heads, self.form = query.shape[1], form
        return causal_attention(query, key, value, form)

    def tensors(self) -> tuple[Tensor, ...]:
        """Key and value so far, or nothing before the first call."""
        return () if self.key is None or self.value is None else (self.key, self.value)


class RecordingLayer:
    """A `LayerCache` for one pass over a whole text, which records the attention weights of its last `rows` tokens."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.weights: Tensor | None = None  # [batch, heads, rows, total]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        """See `LayerCache.attend`."""
        weights = attention_weights(query, key, form)
        self.weights = weights[:, :, -self.rows :]
        return weights @ value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)


def recorded_weights(layers: Sequence[RecordingLayer]) -> list[Tensor]:
    """The attention weights that the layers recorded."""
    return [layer.weights for layer in layers if layer.weights is not None]


class KeyValueCache:
    """One `EagerLayer` per layer, made when first asked for; for running a decoder in PyTorch."""

    def __init__(self) -> None:
        self.layers: dict[int, EagerLayer] = {}

    def __getitem__(self, index: int) -> EagerLayer:
        return self.layers.setdefault(index, EagerLayer())

    def __len__(self) -> int:
        return len(self.layers)
