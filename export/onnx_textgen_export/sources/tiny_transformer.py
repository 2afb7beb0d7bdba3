"""A small reference decoder: one class with options, written for reading, training and export.

`DecoderConfig()` is TinyTransformer: vocabulary 8,000, width 128, two layers, four heads, ReLU feed-forward of 256, learned
positions up to 1,000 and an untied output layer with bias, 2.45 M parameters. The other options turn the same class into the
GPT or the Llama recipe (`story`, the embedded default, is one of those). Attention goes through `cached_attention`, so the
class trains, runs over a cache and exports unchanged. Training itself is in `train`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..errors import ExportError
from .attention import LayerCache, cached_attention


@dataclasses.dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Everything that shapes a `TinyTransformer`."""

    vocab_size: int = 8000
    width: int = 128
    """Size of a token's vector between layers."""
    layers: int = 2
    heads: int = 4
    kv_heads: int | None = None
    """Heads of keys and values; fewer than `heads` is grouped-query attention. None: as many as `heads`."""
    feed_forward: int = 256
    """Inner size of the feed-forward block."""
    context_length: int = 1000
    norm: Literal["layer", "rms"] = "layer"
    norm_placement: Literal["pre", "post"] = "pre"
    """Before each sublayer (GPT-2 and later), or after the residual sum (the 2017 Transformer)."""
    activation: Literal["relu", "gelu", "silu_gated"] = "relu"
    positions: Literal["learned", "sinusoidal", "rotary"] = "learned"
    rotary_base: float = 10000.0
    tie_embeddings: bool = False
    """The output layer reuses the embedding matrix (and then has no bias)."""
    bias: bool = True
    """Biases in the linear layers and in the untied output layer."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")

    @property
    def head_size(self) -> int:
        """Size of one head's query, key and value."""
        return self.width // self.heads


def as_tensor(x: Any) -> Tensor:  # noqa: ANN401 - calling a module returns Any
    """Return a module's output, typed as a tensor."""
    return cast(Tensor, x)


def make_norm(config: DecoderConfig) -> nn.Module:
    """LayerNorm or RMSNorm over the width."""
    return nn.LayerNorm(config.width) if config.norm == "layer" else nn.RMSNorm(config.width, eps=1e-5)


def sinusoids(length: int, width: int) -> Tensor:
    """The fixed position vectors of Vaswani et al. 2017, section 3.5: [length, width], sines first, then cosines."""
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * frequencies[None]
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021) in Llama's half-split form.

    x: [batch, heads, new, head_size]; cos, sin: [batch, new, head_size].
    """
    first, second = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]


class Attention(nn.Module):
    """Masked self-attention over the tokens so far."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_size = config.heads, config.kv_heads or config.heads, config.head_size
        self.query = nn.Linear(config.width, self.heads * self.head_size, bias=config.bias)
        self.key = nn.Linear(config.width, self.kv_heads * self.head_size, bias=config.bias)
        self.value = nn.Linear(config.width, self.kv_heads * self.head_size, bias=config.bias)
        self.output = nn.Linear(self.heads * self.head_size, config.width, bias=config.bias)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, cache: LayerCache | None) -> Tensor:
        """x: [batch, new, width], as is the result; `rotary`: cosines and sines of the positions."""
        batch, new, _ = x.shape
        query = self.query(x).view(batch, new, self.heads, self.head_size).transpose(1, 2)
        key = self.key(x).view(batch, new, self.kv_heads, self.head_size).transpose(1, 2)
        value = self.value(x).view(batch, new, self.kv_heads, self.head_size).transpose(1, 2)
        if rotary is not None:
            query, key = rotate(query, *rotary), rotate(key, *rotary)
        attended = cached_attention(query, key, value, cache)  # [batch, heads, new, head_size]
        return as_tensor(self.output(attended.transpose(1, 2).reshape(batch, new, -1)))


class FeedForward(nn.Module):
    """Two linear layers with an activation between; SwiGLU (Shazeer 2020) where gated."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.up = nn.Linear(config.width, config.feed_forward, bias=config.bias)
        self.gate = nn.Linear(config.width, config.feed_forward, bias=config.bias) if self.activation == "silu_gated" else None
        self.down = nn.Linear(config.feed_forward, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, new, width], as is the result."""
        if self.gate is not None:
            inner = F.silu(self.gate(x)) * self.up(x)
        else:
            inner = F.relu(self.up(x)) if self.activation == "relu" else F.gelu(self.up(x))
        return as_tensor(self.down(inner))


class Layer(nn.Module):
    """One decoder layer: attention, then feed-forward, each with a residual sum and a norm."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.pre = config.norm_placement == "pre"
        self.attention, self.feed_forward = Attention(config), FeedForward(config)
        self.attention_norm, self.feed_forward_norm = make_norm(config), make_norm(config)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None, cache: LayerCache | None) -> Tensor:
        """x: [batch, new, width], as is the result."""
        if self.pre:
            x = x + as_tensor(self.attention(self.attention_norm(x), rotary, cache))
            return x + as_tensor(self.feed_forward(self.feed_forward_norm(x)))
        x = as_tensor(self.attention_norm(x + self.attention(x, rotary, cache)))
        return as_tensor(self.feed_forward_norm(x + self.feed_forward(x)))


class TinyTransformer(nn.Module):
    """A decoder-only transformer: token ids in, next-token logits out."""

    def __init__(self, config: DecoderConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or DecoderConfig()
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_table: Tensor
        self.cos_table: Tensor
        self.sin_table: Tensor
        if config.positions == "learned":
            self.position_embedding = nn.Embedding(config.context_length, config.width)
        elif config.positions == "sinusoidal":
            self.register_buffer("position_table", sinusoids(config.context_length, config.width), persistent=False)
        else:
            frequencies = config.rotary_base ** (-torch.arange(0, config.head_size, 2) / config.head_size)
            angles = torch.arange(config.context_length)[:, None] * frequencies.repeat(2)[None]
            self.register_buffer("cos_table", angles.cos(), persistent=False)
            self.register_buffer("sin_table", angles.sin(), persistent=False)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = make_norm(config) if config.norm_placement == "pre" else nn.Identity()
        self.head = nn.Linear(config.width, config.vocab_size, bias=config.bias and not config.tie_embeddings)
        if config.tie_embeddings:
            self.head.weight = self.embedding.weight
        self.apply(self._initialise)

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, cache: Sequence[LayerCache] | None = None) -> Tensor:
        """Logits [batch, new, vocabulary] for `input_ids` [batch, new].

        `position_ids` [batch, new] defaults to 0, 1, 2 ...; `cache` holds one `LayerCache` per layer and is updated.
        """
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        x = self.embedding(input_ids)
        rotary = None
        if self.config.positions == "learned":
            x = x + self.position_embedding(position_ids)
        elif self.config.positions == "sinusoidal":
            x = x + self.position_table[position_ids]
        else:
            rotary = (self.cos_table[position_ids], self.sin_table[position_ids])
        for index, layer in enumerate(self.layers):
            x = layer(x, rotary, cache[index] if cache is not None else None)
        return as_tensor(self.head(self.norm(x)))

    def save(self, folder: Path) -> None:
        """Write `config.json` and `model.safetensors` into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        record = {"model_type": "tiny_transformer", **dataclasses.asdict(self.config)}
        (folder / "config.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        if self.config.tie_embeddings:
            del tensors["head.weight"]
        save_file(tensors, folder / "model.safetensors")

    @classmethod
    def from_folder(cls, folder: Path) -> TinyTransformer:
        """Read what `save` wrote; raises `ExportError` for any other folder."""
        try:
            record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            del record["model_type"]
            model = cls(DecoderConfig(**record))
            tensors = load_file(folder / "model.safetensors")
            if model.config.tie_embeddings:
                tensors["head.weight"] = tensors["embedding.weight"]
            model.load_state_dict(tensors)
        except (OSError, TypeError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ExportError(f"{folder} is not a folder that TinyTransformer.save wrote: {reason}") from error
        return model.eval()
