"""EAGLE-3 heads of random weights, and what they compute by the authors' formula, in plain tensors without any cache."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

LAYERS, WIDTH, VOCAB_SIZE, GUESSED = 7, 64, 40, 24


def small_model(**sizes: Any) -> transformers.PreTrainedModel:
    """A decoder of random weights whose texts vary."""
    torch.manual_seed(0)
    given: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "hidden_size": WIDTH, "num_hidden_layers": LAYERS} | sizes
    given = {
        "max_position_embeddings": 160,
        "tie_word_embeddings": False,
        "intermediate_size": 96,
    } | given
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **given)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.0 if "embed" in name else 0.1)
    return model


@dataclasses.dataclass(frozen=True)
class HeadForm:
    """How the checkpoint of a head is written."""

    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Further settings."""
    of_speculators: bool = False
    """In the form of speculators instead of the authors'."""
    seed: int = 1


def write_head(folder: Path, model: transformers.PreTrainedModel, form: HeadForm = HeadForm(), **sizes: int) -> Path:
    """Write the checkpoint of a random head for a model."""
    width, vocab_size = model.config.hidden_size, model.config.vocab_size
    heads, kv_heads, inner = 8, 4, sizes.get("inner", 80)
    guessed, size = sizes.get("guessed", GUESSED), width // heads
    generator = torch.Generator().manual_seed(form.seed)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    def gains() -> Tensor:
        return 1 + 0.1 * torch.randn(width, generator=generator)

    layer = "layers.0" if form.of_speculators else "midlayer"
    tensors = {
        "fc.weight": matrix(width, sizes.get("read_width", 3 * width)),
        f"{layer}.self_attn.q_proj.weight": matrix(heads * size, 2 * width),
        f"{layer}.self_attn.k_proj.weight": matrix(kv_heads * size, 2 * width),
        f"{layer}.self_attn.v_proj.weight": matrix(kv_heads * size, 2 * width),
        f"{layer}.self_attn.o_proj.weight": matrix(width, heads * size),
        f"{layer}.mlp.gate_proj.weight": matrix(inner, width),
        f"{layer}.mlp.up_proj.weight": matrix(inner, width),
        f"{layer}.mlp.down_proj.weight": matrix(width, inner),
        **{f"{layer}.{name}.weight": gains() for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")},
        "norm.weight": gains(),
        "lm_head.weight": 4 * matrix(guessed, width),
    }
    ids = torch.randperm(vocab_size, generator=generator)[:guessed].sort().values
    tensors |= {"d2t": ids - torch.arange(guessed), "t2d": torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, ids, True)}
    if form.of_speculators:
        tensors["embed_tokens.weight"] = model.get_input_embeddings().weight.detach().clone()
    config = {"model_type": "llama", "hidden_size": width, "intermediate_size": inner, "num_attention_heads": heads}
    config |= {"num_key_value_heads": kv_heads, "vocab_size": vocab_size, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
    config |= {
        "num_hidden_layers": 1,
        "draft_vocab_size": guessed,
        "rope_scaling": None,
        "architectures": ["LlamaForCausalLMEagle3"],
    }
    written = {"transformer_layer_config": config} if form.of_speculators else config
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(written | form.settings))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


@dataclasses.dataclass(frozen=True)
class Formula:
    """A head in plain tensors."""

    tensors: dict[str, Tensor]
    settings: dict[str, Any]

    @classmethod
    def of(cls, folder: Path) -> Formula:
        """That of a checkpoint."""
        tensors = {name.replace("layers.0.", "midlayer."): each for name, each in load_file(folder / "model.safetensors").items()}
        settings = json.loads((folder / "config.json").read_text())
        return cls(tensors, settings.get("transformer_layer_config", {}) | settings)

    def norm(self, x: Tensor, name: str) -> Tensor:
        """RMS norm."""
        return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * self.tensors[f"{name}.weight"]

    def product(self, x: Tensor, name: str) -> Tensor:
        """A linear layer."""
        return x @ self.tensors[f"{name}.weight"].T

    def __call__(self, embeddings: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [tokens, vocabulary] and next states [tokens, width], for states that have passed `fc` or are the head's own."""
        normed = self.norm(states, "midlayer.hidden_norm")
        pairs = torch.cat([self.norm(embeddings, "midlayer.input_layernorm"), normed], -1)
        if self.settings.get("norm_before_residual"):
            states = normed
        heads, kv_heads = self.settings["num_attention_heads"], self.settings["num_key_value_heads"]
        query, key, value = (self.product(pairs, f"midlayer.self_attn.{kind}_proj") for kind in "qkv")
        query, key, value = (part.unflatten(1, (count, -1)) for part, count in ((query, heads), (key, kv_heads), (value, kv_heads)))
        query, key = self.rotated(query), self.rotated(key)
        key, value = (part.repeat_interleave(heads // kv_heads, 1) for part in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[-1] ** 0.5
        scores = scores + torch.full(scores.shape[1:], -torch.inf).triu(1)
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1)
        states = states + self.product(attended, "midlayer.self_attn.o_proj")
        inner = self.norm(states, "midlayer.post_attention_layernorm")
        gate = torch.nn.functional.silu(self.product(inner, "midlayer.mlp.gate_proj"))
        states = states + self.product(gate * self.product(inner, "midlayer.mlp.up_proj"), "midlayer.mlp.down_proj")
        logits = torch.full((len(states), self.settings["vocab_size"]), -torch.inf)
        ids = torch.arange(len(self.tensors["d2t"])) + self.tensors["d2t"]
        logits[:, ids] = self.product(self.norm(states, "norm"), "lm_head")
        return logits, states

    @staticmethod
    def rotated(x: Tensor) -> Tensor:
        """Rotary positions [tokens, heads, size] from 0, of base 10,000."""
        half = x.shape[-1] // 2
        angles = torch.arange(len(x))[:, None] * 10000.0 ** (-torch.arange(half) / half)
        cos, sin = (torch.cat([part, part], -1)[:, None] for part in (angles.cos(), angles.sin()))
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def guesses(self, model: transformers.PreTrainedModel, text: list[int], layers: tuple[int, ...], count: int) -> list[int]:
        """The most likely next tokens after a text of a model, guessed one after the other."""
        table = model.get_input_embeddings().weight
        with torch.no_grad():
            known = model(torch.tensor([text]), output_hidden_states=True).hidden_states
            states = self.product(torch.cat([known[layer][0] for layer in layers], -1), "fc")[:-1]
            ids = text[1:]
            for _ in range(count):
                logits, following = self(table[ids], states)
                ids, states = [*ids, int(logits[-1].argmax())], torch.cat([states, following[-1:]])
        return ids[len(text) - 1 :]
