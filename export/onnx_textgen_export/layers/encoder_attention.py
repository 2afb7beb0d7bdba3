"""Attention of text encoders by one operator, through transformers' `AttentionInterface`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
import torch.onnx.ops as onnx_ops
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from ..errors import ExportError
from ..sources.onnx_attention import heads_last
from .fused_attention import HARMLESS

ATTENTION, OWN = "onnx_textgen_encoder", "eager"
"""By one operator; and by the model's own code."""
LARGEST_GROUP: ContextVar[int] = ContextVar("most tokens of a group that attention sees")
CALLS: ContextVar[list[str]] = ContextVar("calls of the attention of text encoders")


@contextlib.contextmanager
def counted_calls() -> Iterator[list[str]]:
    """Within the context, the names of the modules that attend through the interface are collected."""
    token = CALLS.set([])
    try:
        yield CALLS.get()
    finally:
        CALLS.reset(token)


def attention(  # noqa: PLR0917 - the signature is transformers'
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **rest: object,
) -> tuple[Tensor, None]:
    """transformers' attention signature -> ONNX Runtime's MultiHeadAttention; returns [batch, tokens, heads, head_size].

    `cu_seq_lens_q` [groups + 1], the same for keys: where groups of tokens end that see each other alone.
    Outside a trace it returns zeros, which is enough to see whether the model takes this path.
    """
    name = type(module).__name__
    if softcap is not None or any(isinstance(each, Tensor) for key_, each in rest.items() if key_ not in HARMLESS):
        raise ExportError(f"{name} attends in a way that the operator does not know")
    CALLS.get([]).append(name)
    batch, heads, tokens, _ = query.shape
    if (groups := heads // key.shape[1]) > 1:
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    size = value.shape[3]
    if not torch.compiler.is_exporting():
        return query.new_zeros(batch, tokens, heads, size), None
    attributes: dict[str, Any] = {"num_heads": heads} | ({} if scaling is None else {"scale": float(scaling)})
    parts = (heads_last(query), heads_last(key), heads_last(value))
    if cu_seq_lens_q is not None and cu_seq_lens_q.shape[0] > len(("start", "end")):
        return by_group(parts, cu_seq_lens_q, attributes).view(batch, tokens, heads, size), None
    if attention_mask is not None:
        attention_mask = attention_mask.expand(-1, -1, tokens, -1)  # the operator repeats rows and heads alone
    return multi_head((*parts, None, None, attention_mask), attributes).view(batch, tokens, heads, size), None


def multi_head(inputs: tuple[Tensor | None, ...], attributes: dict[str, Any]) -> Tensor:
    """The operator; its inputs begin with query, key and value [batch, tokens, heads * head_size]."""
    query, value = inputs[0], inputs[2]
    assert query is not None and value is not None
    output: Tensor = onnx_ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        inputs,
        attributes,
        dtype=query.dtype,
        shape=(*query.shape[:2], value.shape[2]),
        version=1,
    )
    return output


def by_group(parts: tuple[Tensor, ...], ends: Tensor, attributes: dict[str, Any]) -> Tensor:
    """Attention [1, tokens, width] of groups of tokens that see each other alone: each becomes a row of a padded batch.

    A mask over all tokens would take memory by their square. ends [groups + 1]: where groups end, 0 first.
    """
    largest, tokens = LARGEST_GROUP.get(), parts[0].shape[1]
    starts, counts = ends[:-1].long(), (ends[1:] - ends[:-1]).long()
    places = torch.arange(largest)[None]
    members = (starts[:, None] + places).clamp(max=tokens - 1)  # [groups, largest]; those of the next groups are padding
    seen = (places < counts[:, None]).to(torch.int32)
    rows = [nn.functional.embedding(members, part[0]) for part in parts]
    found = multi_head((*rows, None, seen, None), attributes)
    group = (torch.arange(tokens)[:, None] >= ends[None, 1:]).sum(1)
    where = group * largest + torch.arange(tokens) - nn.functional.embedding(group, starts[:, None])[:, 0]
    return nn.functional.embedding(where, found.reshape(-1, found.shape[2]))[None]


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, eager_mask)
