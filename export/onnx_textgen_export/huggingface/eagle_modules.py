"""An EAGLE-3 draft head in PyTorch: one Llama layer over pairs of a token embedding and a hidden state.

The parameters have the names of the authors' checkpoints. The head has no token embedding: it is given the model's. Its logits are
those of the most frequent tokens; here they get their places among those of all tokens, and the others never win.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from ..sources.attention import LayerCache, cached_attention


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a head's attention."""

    width: int
    """Of a hidden state."""
    heads: int
    kv_heads: int
    head_size: int

    @classmethod
    def of(cls, config: LlamaConfig) -> Self:
        """Those that a config names or implies."""
        known = cast(Any, config)
        return cls(known.hidden_size, known.num_attention_heads, known.num_key_value_heads, known.head_dim)


class Attention(nn.Module):
    """Attention of the head's layer."""

    def __init__(self, sizes: Sizes, *, bias: bool) -> None:
        super().__init__()
        self.head_size = sizes.head_size
        self.q_proj = nn.Linear(2 * sizes.width, sizes.heads * sizes.head_size, bias=bias)
        self.k_proj = nn.Linear(2 * sizes.width, sizes.kv_heads * sizes.head_size, bias=bias)
        self.v_proj = nn.Linear(2 * sizes.width, sizes.kv_heads * sizes.head_size, bias=bias)
        self.o_proj = nn.Linear(sizes.heads * sizes.head_size, sizes.width, bias=bias)

    def forward(self, pairs: Tensor, rotary: tuple[Tensor, Tensor], cache: LayerCache | None) -> Tensor:
        """pairs: [batch, new, 2 * width]; returns [batch, new, width]."""
        query, key, value = (
            layer(pairs).unflatten(2, (-1, self.head_size)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )  # [batch, heads, new, head_size]
        query, key = apply_rotary_pos_emb(query, key, *rotary)
        attended = cached_attention(query, key, value, cache)
        return cast(Tensor, self.o_proj(attended.transpose(1, 2).flatten(2)))


class Layer(nn.Module):
    """The head's only layer."""

    def __init__(self, config: LlamaConfig, *, norm_before_residual: bool) -> None:
        super().__init__()
        self.norm_before_residual = norm_before_residual
        self.self_attn = Attention(Sizes.of(config), bias=bool(config.attention_bias))
        self.mlp = cast(Any, LlamaMLP)(config)
        self.hidden_norm, self.input_layernorm, self.post_attention_layernorm = (make_norm(config) for _ in range(3))

    def forward(self, embeddings: Tensor, states: Tensor, rotary: tuple[Tensor, Tensor], cache: LayerCache | None) -> Tensor:
        """embeddings, states: [batch, new, width], as are the states that it returns."""
        normed = self.hidden_norm(states)
        pairs = torch.cat([self.input_layernorm(embeddings), normed], dim=-1)
        states = (normed if self.norm_before_residual else states) + self.self_attn(pairs, rotary, cache)
        return cast(Tensor, states + self.mlp(self.post_attention_layernorm(states)))


class EagleHead(nn.Module):
    """The head."""

    def __init__(
        self, config: LlamaConfig, *, read_width: int, guessed_ids: Tensor, vocab_size: int, norm_before_residual: bool
    ) -> None:
        """`read_width`: numbers per token of the model's states; `guessed_ids`: the id of each of its logits."""
        super().__init__()
        width = Sizes.of(config).width
        self.fc = nn.Linear(read_width, width, bias=False)
        self.midlayer = Layer(config, norm_before_residual=norm_before_residual)
        self.norm = make_norm(config)
        self.lm_head = nn.Linear(width, len(guessed_ids), bias=False)
        self.rotary = LlamaRotaryEmbedding(config)
        places = torch.full((vocab_size,), len(guessed_ids))
        places[guessed_ids] = torch.arange(len(guessed_ids))
        self.register_buffer("places", places, persistent=False)
        """For each id, which logit is its own; one after the last for those that it does not guess."""

    def forward(self, embeddings: Tensor, read: Tensor, own: Tensor, positions: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Logits [batch, new, vocabulary] of tokens: the first have states `read` from the model, the others the head's `own`."""
        states = torch.cat([self.fc(read), own], dim=1)
        states = states.index_select(1, torch.arange(embeddings.shape[1]))  # all; the tracer learns that there are as many
        states = self.midlayer(embeddings, states, self.rotary(embeddings, positions), cache)
        logits = self.lm_head(self.norm(states))
        never = torch.full_like(logits[..., :1], -torch.inf)
        return torch.cat([logits, never], dim=-1).index_select(-1, self.get_buffer("places"))


def make_norm(config: LlamaConfig) -> nn.Module:
    """An RMSNorm over hidden states."""
    return cast(nn.Module, cast(Any, LlamaRMSNorm)(config.hidden_size, eps=config.rms_norm_eps))
