"""Checkpoints of tiny models in the layouts of GPTQ, AWQ, compressed-tensors and fp8, rounded to nearest.

tests/export/weights/test_quantization_schemes.py holds the layouts against layers that those libraries packed.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
GROUP = 32


@dataclasses.dataclass(frozen=True)
class Rounded:
    """A matrix [out, in] as integers, with scales and zero points [out, groups]."""

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    groups: np.ndarray
    """The group of each input."""

    @property
    def values(self) -> np.ndarray:
        return ((self.codes - self.zeros[:, self.groups]) * self.scales[:, self.groups]).astype(np.float32)


def tiny_llama(**changes: object) -> transformers.LlamaForCausalLM:
    """A Llama of two layers with drawn weights and a vocabulary large enough for its table to be rounded."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config = transformers.LlamaConfig(
        **{**sizes, "vocab_size": 1100, "max_position_embeddings": 128, "tie_word_embeddings": False, **changes}
    )
    return transformers.LlamaForCausalLM(config).eval()


def round_matrix(weight: np.ndarray, bits: int, *, symmetric: bool, order: np.ndarray | None = None) -> Rounded:
    """Round to nearest in groups of `GROUP` inputs, taken in an order; scales are float16 numbers."""
    inputs, most = weight.shape[1], 2**bits - 1
    order = np.arange(inputs) if order is None else order
    blocks = weight[:, order].reshape(len(weight), -1, GROUP)
    lowest, highest = np.minimum(blocks.min(2), 0), np.maximum(blocks.max(2), 0)
    if symmetric:
        highest = np.maximum(highest, -lowest)
        lowest = -highest
    scales = ((highest - lowest) / most).astype(np.float16).astype(np.float32)
    zeros = np.full(scales.shape, 2 ** (bits - 1)) if symmetric else np.clip(np.rint(-lowest / scales), 0, most)
    groups = np.empty(inputs, np.int64)
    groups[order] = np.arange(inputs) // GROUP
    codes = np.clip(np.rint(weight / scales[:, groups] + zeros[:, groups]), 0, most)
    return Rounded(codes.astype(np.int64), scales, zeros.astype(np.int64), groups)


def packed(codes: np.ndarray, bits: int) -> Tensor:
    """Integers of each row as one stream of bits, in words of 32."""
    places = (codes[:, :, None] >> np.arange(bits)) & 1
    stream = np.packbits(places.reshape(len(codes), -1).astype(np.uint8), axis=1, bitorder="little")
    return torch.from_numpy(np.ascontiguousarray(stream).view(np.int32).copy())


def gptq(found: Rounded, bits: int) -> dict[str, Tensor]:
    return {
        "qweight": packed(found.codes, bits).T.contiguous(),
        "qzeros": packed((found.zeros.T - 1) & (2**bits - 1), bits),
        "scales": torch.from_numpy(found.scales.T.copy()).half(),
        "g_idx": torch.from_numpy(found.groups).int(),
    }


def awq(found: Rounded, bits: int) -> dict[str, Tensor]:
    def in_order(codes: np.ndarray) -> np.ndarray:
        return codes.reshape(len(codes), -1, 8)[:, :, AWQ_ORDER].reshape(codes.shape)

    return {
        "qweight": packed(in_order(found.codes.T), bits),
        "qzeros": packed(in_order(found.zeros.T), bits),
        "scales": torch.from_numpy(found.scales.T.copy()).half(),
    }


def compressed(found: Rounded, bits: int) -> dict[str, Tensor]:
    return {
        "weight_packed": packed(found.codes, bits),
        "weight_zero_point": packed(found.zeros.T, bits).T.contiguous(),
        "weight_scale": torch.from_numpy(found.scales).half().contiguous(),
        "weight_shape": torch.tensor(found.codes.shape),
    }


METHODS = {"gptq": gptq, "awq": awq, "compressed-tensors": compressed}


def write_quantized(
    folder: Path, model: nn.Module, method: str, *, bits: int = 4, symmetric: bool = False, act_order: bool = False
) -> dict[str, np.ndarray]:
    """Write a checkpoint whose linear layers, but the output layer, are quantised; returns their values by name."""
    tensors, values = dict[str, Tensor](), dict[str, np.ndarray]()
    linear = {f"{name}.weight" for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name != "lm_head"}
    orders = np.random.default_rng(0)
    shuffled = {size: orders.permutation(size) for size in (64, 128)}
    for name, tensor in model.state_dict().items():
        if name not in linear:
            tensors[name] = tensor.half()
        elif method == "fp8":
            scale = tensor.abs().max() / 448
            tensors |= {name: (tensor / scale).to(torch.float8_e4m3fn), f"{name}_scale_inv": scale.reshape(1, 1)}
        else:
            order = shuffled[tensor.shape[1]] if act_order else None
            found = round_matrix(tensor.numpy(), bits, symmetric=symmetric, order=order)
            values[name] = found.values
            tensors |= {name.removesuffix("weight") + part: value for part, value in METHODS[method](found, bits).items()}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = {"quant_method": method, "bits": bits, "group_size": GROUP, "version": "gemm", "desc_act": act_order}
    config = model.config.to_dict() | {"quantization_config": settings, "architectures": [type(model).__name__]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return values
