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
from ..sources.onnx_attention import HIDDEN, heads_last
from .fused_attention import HARMLESS

ATTENTION, OWN = "onnx_textgen_encoder", "eager"
"""By one operator; and by the model's own code."""
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
    if cu_seq_lens_q is not None and cu_seq_lens_q.shape[0] > len(("start", "end")):
        group = (torch.arange(tokens)[:, None] >= cu_seq_lens_q[None]).sum(1)
        attention_mask = torch.where(group[:, None] == group[None], 0.0, HIDDEN)[None, None]
    if attention_mask is not None:
        attention_mask = attention_mask.expand(-1, -1, tokens, -1)  # the operator repeats rows and heads alone
    attributes: dict[str, Any] = {"num_heads": heads} | ({} if scaling is None else {"scale": float(scaling)})
    output = onnx_ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        (heads_last(query), heads_last(key), heads_last(value), None, None, attention_mask),
        attributes,
        dtype=query.dtype,
        shape=(batch, tokens, heads * size),
        version=1,
    )
    return output.view(batch, tokens, heads, size), None


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, eager_mask)
