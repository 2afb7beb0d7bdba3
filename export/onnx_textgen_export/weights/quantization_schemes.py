"""How quantised checkpoints store the matrix of a layer: the tensors that stand for its `weight`, and the numbers that they mean.

Each scheme reads the layout that its makers' library writes, without that library. Matrices are [out, in] and float32; a product
of an integer and a float16 scale is exact in float32.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .bit_packing import WORD, unpack
from .stored_checks import (
    FLOATS,
    WHOLE,
    bits_in,
    check_group_size,
    check_groups,
    check_scales,
    check_shape,
    check_type,
    check_words,
)

Settings = Mapping[str, Any]
"""The checkpoint's `quantization_config`."""
Parts = Mapping[str, Tensor]
"""A layer's tensors by their own names: `qweight`, `scales`, ..."""
Floats = npt.NDArray[np.float32]
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where AWQ's kernels expect each of eight integers in a word."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scheme:
    """One way to store a matrix."""

    name: str
    marker: str
    """The tensor by which a layer that is stored so is known."""
    beside: frozenset[str]
    """Tensors of such a layer, some of which may be missing."""
    decode: Callable[[Parts, Settings], Floats]
    """The matrix [out, in]; raises `ValueError` for a layout that it does not know."""
    order: Callable[[Parts], npt.NDArray[np.int64] | None] = lambda parts: None
    """Inputs in the order of their groups, if that is not their own order."""


def floats(tensor: Tensor) -> Floats:
    """A tensor of any float type in float32."""
    return tensor.to(torch.float32).numpy()


def act_order(groups: Tensor | None) -> npt.NDArray[np.int64] | None:
    """The inputs sorted by the numbers of their groups; None if they are already."""
    if groups is None or bool((groups[1:] >= groups[:-1]).all()):
        return None
    return np.argsort(groups.numpy(), kind="stable").astype(np.int64)


def read_gptq(parts: Parts, settings: Settings) -> Floats:
    """GPTQ (AutoGPTQ, GPTQModel): integers packed along the inputs, zero points along the outputs, stored minus one.

    qweight [in * bits / 32, out], qzeros [groups, out * bits / 32], scales [groups, out], g_idx [in].
    """
    check_scales(parts, "scales")
    scales = floats(parts["scales"])
    groups, outputs = scales.shape
    bits = bits_in(settings, "bits", allowed=(2, 3, 4, 8))
    inputs = len(parts["qweight"]) * WORD // bits
    check_words(parts, "qweight", -(-inputs * bits // WORD), outputs)
    check_words(parts, "qzeros", groups, -(-outputs * bits // WORD))
    check_group_size(settings.get("group_size"), inputs=inputs, groups=groups)
    if "g_idx" in parts:
        check_groups(parts, "g_idx", inputs=inputs, groups=groups)
    of_inputs = parts["g_idx"].numpy() if "g_idx" in parts else np.arange(inputs) // -(-inputs // groups)
    codes = unpack(parts["qweight"].T.numpy(), bits, inputs).astype(np.int16)
    zeros = unpack(parts["qzeros"].numpy(), bits, outputs).astype(np.int16)
    if settings.get("checkpoint_format", "gptq") == "gptq":
        zeros = (zeros + 1) & ((1 << bits) - 1)
    return (codes - zeros.T[:, of_inputs]) * np.ascontiguousarray(scales.T)[:, of_inputs]


def read_awq(parts: Parts, settings: Settings) -> Floats:
    """AWQ (AutoAWQ, version gemm): 4-bit integers packed along the outputs, eight to a word in the order of its kernels.

    qweight [in, out / 8], qzeros [groups, out / 8], scales [groups, out].
    """
    if (version := str(settings.get("version", "gemm")).lower()) != "gemm":
        raise ValueError(f"its version is {version}, whose layout is not known; only gemm is")
    bits_in(settings, "bits", "w_bit", allowed=(4,))
    check_scales(parts, "scales")
    scales = floats(parts["scales"])
    groups, outputs = scales.shape
    check_words(parts, "qweight", len(parts["qweight"]), -(-outputs * 4 // WORD))
    check_words(parts, "qzeros", groups, -(-outputs * 4 // WORD))
    check_group_size(settings.get("group_size", settings.get("q_group_size")), inputs=len(parts["qweight"]), groups=groups)
    codes, zeros = (in_awq_order(unpack(parts[name].numpy(), 4, outputs)).astype(np.int16) for name in ("qweight", "qzeros"))
    size = len(codes) // groups
    numbers = (codes.reshape(groups, size, outputs) - zeros[:, None]) * scales[:, None]
    return np.ascontiguousarray(numbers.reshape(-1, outputs).T)


def in_awq_order(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The integers of each word in their own order."""
    eights = codes.reshape(len(codes), -1, len(AWQ_ORDER))
    return eights[:, :, list(AWQ_ORDER)].reshape(codes.shape)


def read_packed(parts: Parts, settings: Settings) -> Floats:
    """compressed-tensors' pack-quantized: signed integers, stored from zero up, packed along the inputs.

    weight_packed [out, in * bits / 32], weight_scale [out, groups], weight_shape (out, in), weight_zero_point packed along the
    outputs, weight_g_idx [in].
    """
    check_type(parts, "weight_shape", WHOLE)
    check_shape(parts, "weight_shape", 2)
    check_scales(parts, "weight_scale")
    outputs, inputs = (int(size) for size in parts["weight_shape"])
    groups = parts["weight_scale"].shape[1]
    bits, size = packed_form(settings, words=parts["weight_packed"].shape[-1], inputs=inputs)
    check_words(parts, "weight_packed", outputs, -(-inputs * bits // WORD))
    check_shape(parts, "weight_scale", outputs, groups)
    check_group_size(size, inputs=inputs, groups=groups)
    if "weight_zero_point" in parts:
        check_words(parts, "weight_zero_point", -(-outputs * bits // WORD), groups)
    codes = unpack(parts["weight_packed"].numpy(), bits, inputs).astype(np.int16)
    scales = floats(parts["weight_scale"])
    zeros = np.full(scales.shape, 1 << (bits - 1), np.int16)
    if "weight_zero_point" in parts:
        zeros = unpack(np.ascontiguousarray(parts["weight_zero_point"].T.numpy()), bits, outputs).T.astype(np.int16)
    return in_groups(codes, scales, zeros, parts.get("weight_g_idx"))


def packed_form(settings: Settings, *, words: int, inputs: int) -> tuple[int, int | None]:
    """Return bits and inputs per group, of the form that has this many words for a row; `ValueError` if none has."""
    named = settings.get("config_groups")
    weights = [each.get("weights") or {} for each in (named.values() if isinstance(named, Mapping) else ())]
    known = [(each.get("num_bits"), each.get("group_size")) for each in weights] or [(bits, None) for bits in (4, 8)]
    for bits, size in known:
        if isinstance(bits, int) and 1 <= bits <= 8 and -(-inputs * bits // WORD) == words:
            return bits, size if isinstance(size, int) and size > 0 else None
    raise ValueError(
        f"its rows have {words} words for {inputs} inputs, and its settings say bits {[bits for bits, _ in known]!s:.40}"
    )


def in_groups(codes: npt.NDArray[Any], scales: Floats, zeros: npt.NDArray[Any], of_inputs: Tensor | None) -> Floats:
    """(codes - zeros) * scales for codes [out, in], and zeros and scales [out or 1, groups]; `of_inputs`: each input's group."""
    if of_inputs is not None and bool((of_inputs != -1).any()):  # -1 throughout: in their own order
        check_groups({"weight_g_idx": of_inputs}, "weight_g_idx", inputs=codes.shape[1], groups=scales.shape[1])
        chosen = of_inputs.numpy()
        grouped: Floats = (codes - zeros[:, chosen]) * scales[:, chosen]
        return grouped
    blocks = codes.reshape(len(codes), scales.shape[1], -1)
    found: Floats = ((blocks - zeros[:, :, None]) * scales[:, :, None]).reshape(codes.shape)
    return found


def read_unpacked(parts: Parts, settings: Settings) -> Floats:
    """compressed-tensors' int-quantized and float-quantized: 8-bit integers or floats [out, in].

    weight_scale [out, groups] or of one number, weight_zero_point and weight_g_idx as in `read_packed`, not packed.
    """
    if parts["weight"].dtype != torch.int8:
        return read_float8(parts, settings)
    check_scales(parts, "weight_scale", dimensions=(0, 1, 2))
    if "weight_zero_point" in parts:
        check_type(parts, "weight_zero_point", (torch.int8, torch.int16, torch.int32, torch.int64))
        check_shape(parts, "weight_zero_point", *parts["weight_scale"].shape)
    scales = floats(parts["weight_scale"]).reshape(-1, parts["weight_scale"].shape[-1] if parts["weight_scale"].ndim > 1 else 1)
    zeros = parts["weight_zero_point"].numpy() if "weight_zero_point" in parts else np.zeros(scales.shape, np.int16)
    codes = parts["weight"].numpy().astype(np.int16)
    return in_groups(codes, scales, zeros.reshape(scales.shape).astype(np.int16), parts.get("weight_g_idx"))


def read_float8(parts: Parts, settings: Settings) -> Floats:
    """8-bit floats [out, in] times a scale: one for all, one for each output, or one for each tile (`weight_scale_inv`)."""
    name = "weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"
    check_type(parts, "weight", (torch.float8_e4m3fn, torch.float8_e5m2))
    check_scales(parts, name, dimensions=(0, 1, 2))
    weight, scales = floats(parts["weight"]), floats(parts[name])
    if scales.ndim == 1 and scales.size > 1:
        check_shape(parts, name, len(weight))
    if scales.ndim == 2 and scales.shape[1] > 1:
        tile = [-(-size // count) for size, count in zip(weight.shape, scales.shape, strict=True)]
        tile = settings.get("weight_block_size") or tile
        check_shape(parts, name, *(-(-size // each) for size, each in zip(weight.shape, tile, strict=True)))
        scales = scales.repeat(tile[0], 0)[: weight.shape[0]].repeat(tile[1], 1)[:, : weight.shape[1]]
    return weight * (scales.reshape(-1, 1) if scales.ndim < 2 else scales)


def read_bitnet(parts: Parts, settings: Settings) -> Floats:
    """BitNet: -1, 0 and 1 as 0, 1 and 2, four to a byte: rows of the four quarters of the outputs. weight_scale [1]."""
    if settings.get("use_rms_norm"):
        raise ValueError("its layers contain additional norms")
    check_type(parts, "weight", (torch.uint8,))
    check_scales(parts, "weight_scale", dimensions=(0, 1, 2))
    packed, scale = parts["weight"].numpy(), floats(parts["weight_scale"]).reshape(())
    quarters = np.concatenate([(packed >> (2 * place)) & 3 for place in range(4)])
    if (quarters == 3).any():
        raise ValueError("its weight has codes that stand for no number")
    divides = settings.get("linear_class", "bitlinear") == "bitlinear"
    return (quarters.astype(np.float32) - 1) * np.float32(1 / scale if divides else scale)


def read_llm_int8(parts: Parts, settings: Settings) -> Floats:
    """bitsandbytes' LLM.int8(): 8-bit integers [out, in], whose extremes are SCB [out]."""
    check_type(parts, "weight", (torch.int8,))
    check_scales(parts, "SCB", dimensions=(1,))
    check_shape(parts, "SCB", len(parts["weight"]))
    return parts["weight"].numpy().astype(np.float32) * (floats(parts["SCB"]) / np.float32(127))[:, None]


def read_bitsandbytes_4(parts: Parts, settings: Settings) -> Floats:
    """bitsandbytes' nf4 and fp4: numbers of a table of 16, the first of two in the upper half of a byte, scaled in blocks.

    weight [bytes, 1], weight.absmax [blocks], itself quantised if there is weight.nested_absmax, weight.quant_map [16].
    """
    state = json.loads(bytes(next(value for name, value in parts.items() if "quant_state" in name).tolist()))
    count = math.prod(int(size) for size in state["shape"])
    blocks = -(-count // int(state["blocksize"]))
    check_type(parts, "weight", (torch.uint8,))
    check_shape(parts, "weight.absmax", blocks)
    check_type(parts, "weight.quant_map", FLOATS)
    check_shape(parts, "weight.quant_map", 16)
    if parts["weight"].numel() != -(-count // 2):
        raise ValueError(f"its weight has {parts['weight'].numel()} bytes for {count} numbers")
    scales = parts["weight.absmax"]
    if "weight.nested_absmax" in parts:
        check_type(parts, "weight.absmax", (torch.uint8,))
        for name in ("weight.nested_absmax", "weight.nested_quant_map"):
            check_type(parts, name, FLOATS)
        check_shape(parts, "weight.nested_absmax", -(-blocks // int(state["nested_blocksize"])))
        check_shape(parts, "weight.nested_quant_map", 256)
        nested = floats(parts["weight.nested_absmax"]).repeat(state["nested_blocksize"])[: scales.numel()]
        scales = torch.from_numpy(
            floats(parts["weight.nested_quant_map"])[scales.numpy()] * nested + np.float32(state["nested_offset"])
        )
    else:
        check_scales(parts, "weight.absmax", dimensions=(1,))
    packed = parts["weight"].numpy().reshape(-1)
    codes = np.stack([packed >> 4, packed & 15], axis=1).reshape(-1)
    numbers = floats(parts["weight.quant_map"])[codes] * floats(scales).repeat(state["blocksize"])[: len(codes)]
    return numbers[: int(np.prod(state["shape"]))].reshape(state["shape"])


GPTQ_PARTS = frozenset({"qweight", "qzeros", "scales", "g_idx"})
PACKED_PARTS = frozenset({"weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx"})
UNPACKED_PARTS = frozenset({"weight", "weight_scale", "weight_zero_point", "weight_g_idx", "input_scale", "input_zero_point"})
STATE = "weight.quant_state.bitsandbytes__"
BITSANDBYTES_4_PARTS = frozenset(
    {"weight", *(f"weight.{name}" for name in ("absmax", "quant_map", "nested_absmax", "nested_quant_map"))}
) | {f"{STATE}nf4", f"{STATE}fp4"}
SCHEMES: Mapping[str, tuple[Scheme, ...]] = {
    "gptq": (Scheme("GPTQ", "qweight", GPTQ_PARTS, read_gptq, order=lambda parts: act_order(parts.get("g_idx"))),),
    "awq": (Scheme("AWQ", "qweight", GPTQ_PARTS, read_awq),),
    "compressed-tensors": (
        Scheme(
            "pack-quantized", "weight_packed", PACKED_PARTS, read_packed, order=lambda parts: act_order(parts.get("weight_g_idx"))
        ),
        Scheme("compressed-tensors", "weight_scale", UNPACKED_PARTS, read_unpacked),
    ),
    "fp8": (Scheme("fp8", "weight_scale_inv", frozenset({"weight", "weight_scale_inv", "activation_scale"}), read_float8),),
    "bitnet": (Scheme("BitNet", "weight_scale", frozenset({"weight", "weight_scale"}), read_bitnet),),
    "bitsandbytes": (
        Scheme("LLM.int8()", "SCB", frozenset({"weight", "SCB", "weight_format"}), read_llm_int8),
        Scheme("bitsandbytes 4 bits", "weight.absmax", BITSANDBYTES_4_PARTS, read_bitsandbytes_4),
    ),
}
"""By the `quant_method` of a checkpoint."""
