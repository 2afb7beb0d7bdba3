"""Weights as integer codes: blocks along the input dimension, each with a scale and, optionally, a zero point.

`weight = (code - zero) * scale`, where the zero of a symmetric code is the middle code. Scale and zero are found in three ways:
rounding to nearest (ONNX Runtime's C++ quantizer), k-quant (Kawrakow, llama.cpp; ONNX Runtime's form of it) and HQQ (Badri & Shaji
2023). All work on slices of a matrix that fit in the CPU cache, in one thread per core, and never hold the matrix twice.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...threads import for_each
from .options import Quantization

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]
SLICE = 1 << 19
"""Weights per slice, which one thread quantises (2 MiB in float32)."""
TRIED_4_BITS = np.linspace(0.85, 1.15, 7)
TRIED_8_BITS = np.linspace(0.99, 1.01, 5)
"""Factors by which k-quant stretches the codes of the plain rounding."""
HQQ_ROUNDS = 20
HQQ_NORM, HQQ_SHARPNESS, HQQ_GROWTH = 0.7, 10.0, 1.01
"""p of the l_p norm, beta, and the growth factor of beta: the defaults of the paper's code and of ONNX Runtime."""


@dataclasses.dataclass(frozen=True, slots=True)
class Codes:
    """Blocks as integers: codes [block size, blocks], scales and zeros [blocks]."""

    codes: Floats
    """0 to 2 ** bits - 1."""
    scales: Floats
    zeros: Floats | None
    """None: the middle code, 2 ** (bits - 1)."""
    scale_codes: Floats | None = None
    """Integers to multiply by the scale of their row, if scales are stored so: [..., outputs, blocks]; see `with_row_scales`."""
    row_scales: Floats | None = None
    """[outputs, 1]."""
    offsets: Floats | None = None
    """Added to every weight of a block, instead of a zero point: `weight = code * scale + offset`."""

    def values(self, bits: int, inputs: int) -> Floats:
        """The weights [outputs, inputs] that codes [block size, outputs, blocks] represent."""
        middle = np.float32(1 << (bits - 1))
        if self.offsets is not None:
            values = self.codes * self.scales + self.offsets
        else:
            values = (self.codes - (middle if self.zeros is None else self.zeros)) * self.scales
        rows: Floats = values.transpose(1, 2, 0).reshape(values.shape[1], -1)[:, :inputs]
        return rows


def signed_extremes(blocks: Floats) -> Floats:
    """The value of largest magnitude in each block, with its sign."""
    highest, lowest = blocks.max(axis=0), blocks.min(axis=0)
    found: Floats = np.where(highest > -lowest, highest, lowest)
    return found


def inverses(values: Floats) -> Floats:
    """1 / value, and 0 for 0."""
    return np.divide(np.float32(1), values, out=np.zeros_like(values), where=values != 0)


def nearest(blocks: Floats, inverse_scales: Floats, zeros: Floats | float, bits: int) -> Floats:
    """The codes nearest to `blocks`; ties round to the even code."""
    codes = blocks * inverse_scales
    codes += zeros
    np.rint(codes, out=codes)
    np.clip(codes, 0, 2**bits - 1, out=codes)
    return codes


def round_symmetric(blocks: Floats, bits: int) -> Codes:
    """Symmetric rounding; the extreme of a block gets code 0, the one without a mirror image, and is exact."""
    half = 1 << (bits - 1)
    scales = signed_extremes(blocks) / np.float32(-half)
    return Codes(nearest(blocks, inverses(scales), half, bits), scales, None)


def range_of(blocks: Floats) -> tuple[Floats, Floats]:
    """Lowest and highest of each block, zero included so that zero has a code."""
    return np.minimum(blocks.min(axis=0), 0), np.maximum(blocks.max(axis=0), 0)


def round_asymmetric(blocks: Floats, bits: int) -> Codes:
    """Asymmetric rounding: 2 ** bits - 1 steps from the lowest to the highest value of a block; zero is exact."""
    most = 2**bits - 1
    lowest, highest = range_of(blocks)
    scales = (highest - lowest) / np.float32(most)
    zeros = np.clip(np.rint(-lowest * inverses(scales)), 0, most)
    return Codes(nearest(blocks, inverses(scales), zeros, bits), scales, zeros)


def importance(blocks: Floats) -> Floats:
    """Weight of an error: the block's root mean square plus the magnitude of the weight (k-quant)."""
    weights = np.abs(blocks)
    weights += np.sqrt(np.einsum("bn,bn->n", blocks, blocks) / np.float32(len(blocks)))
    return weights


def search(
    blocks: Floats, bits: int, *, symmetric: bool, weights: Floats | None = None, stretches: npt.NDArray[np.float64] | None = None
) -> Codes:
    """k-quant: among codes near the plain rounding, those whose best scale leaves the least weighted squared error.

    weights: of errors, [block size, blocks]; default: `importance`. stretches: factors of the plain scale to try.

    For given codes the best scale is the weighted regression of the weights on them (make_qx_quants in llama.cpp). Zero points
    are integers throughout, so the stored values are compared; ONNX Runtime's form regresses on fractional zero points and rounds
    them at the end, which loses part of the gain.
    """
    most, weights = 2**bits - 1, importance(blocks) if weights is None else weights
    weighted = weights * blocks
    lowest, highest = range_of(blocks)
    half = np.float32(1 << (bits - 1))
    plain = -half * inverses(signed_extremes(blocks)) if symmetric else most * inverses(highest - lowest)
    best_zeros, best_scales, best_gain = np.full_like(lowest, half), np.zeros_like(lowest), np.full_like(lowest, -1)
    if stretches is None:
        stretches = TRIED_4_BITS if bits == 4 else TRIED_8_BITS
    for stretch in stretches:
        tried = plain * np.float32(stretch)
        zeros = best_zeros if symmetric else np.clip(np.rint(-lowest * tried), 0, most)
        steps = nearest(blocks, tried, zeros, bits)
        steps -= zeros
        product = np.einsum("bn,bn->n", weighted, steps)
        steps *= steps
        scales = product * inverses(np.einsum("bn,bn->n", weights, steps))
        gain = product * scales  # reduction of the squared error, compared with storing zeros
        better = gain > best_gain
        best_gain, best_scales = np.where(better, gain, best_gain), np.where(better, scales, best_scales)
        best_zeros = best_zeros if symmetric else np.where(better, zeros, best_zeros)
    codes = nearest(blocks, inverses(best_scales), best_zeros, bits)
    return Codes(codes, best_scales, None if symmetric else best_zeros)


def round_ternary(blocks: Floats) -> Codes:
    """Blocks of -s, 0 and s as the 2-bit codes 1, 2 and 3, losslessly (see `ternary`)."""
    scales = np.abs(blocks).max(axis=0)
    return Codes(nearest(blocks, inverses(scales), 2, 2), scales, None)


def half_quadratic(blocks: Floats, bits: int) -> Codes:
    """HQQ: fractional zero points that minimise the l_0.7 norm of the error, on which large outliers have little influence.

    Alternates between a shrinkage of the error, which separates outliers, and the mean of the rest, which gives the zero point.
    Each block keeps its best zero point. Rounding the zero points to integers would undo the gain.
    """
    lowest, highest = blocks.min(axis=0), blocks.max(axis=0)
    scales = (highest - lowest) / np.float32(2**bits - 1)
    scales = np.where(scales == 0, np.abs(highest), scales)  # a constant block is one step from its zero point
    inverse = inverses(scales)
    zeros = best_zeros = np.rint(-lowest * inverse)
    best_error = np.full(blocks.shape[1], np.inf, np.float32)
    sharpness = np.float32(HQQ_SHARPNESS)
    for _ in range(HQQ_ROUNDS):
        codes = nearest(blocks, inverse, zeros, bits)
        error = blocks - (codes - zeros) * scales
        size = np.abs(error)
        mean_error = size.mean(axis=0)
        better = mean_error < best_error
        best_zeros, best_error = np.where(better, zeros, best_zeros), np.minimum(mean_error, best_error)
        shrunk = np.exp(np.float32(HQQ_NORM - 1) * np.log(size + np.float32(1e-8)))
        outliers = np.copysign(np.maximum(size - shrunk / sharpness, 0), error)
        zeros = (codes - (blocks - outliers) * inverse).mean(axis=0)
        sharpness *= np.float32(HQQ_GROWTH)
    return Codes(nearest(blocks, inverse, best_zeros, bits), scales, best_zeros)


def with_row_scales(blocks: Floats, found: Codes, bits: int) -> Codes:
    """The same rounding with each scale as 8 bits times a float32 scale of its row, as k-quants store them; codes are recomputed.

    blocks: [block size, outputs, blocks]; `found` has the same shape. Positive scales are 0 to 255; those of symmetric codes, which
    have signs, -127 to 127. For 8-bit codes they are rounded up, so that no weight is clipped.
    """
    most = 127 if found.zeros is None else 255
    rows = np.abs(found.scales).max(axis=-1, keepdims=True) / np.float32(most)
    ratio = found.scales * inverses(rows)
    codes = np.sign(ratio) * np.ceil(np.abs(ratio) - np.float32(1e-4)) if bits == 8 else np.rint(ratio)
    codes = np.where((codes == 0) & (ratio != 0), np.sign(ratio), np.clip(codes, -most, most)).astype(np.float32)
    scales = codes * rows
    zeros = float(1 << (bits - 1)) if found.zeros is None else found.zeros
    return Codes(nearest(blocks, inverses(scales), zeros, bits), scales, found.zeros, codes, rows)


def make_quantizer(options: Quantization, bits: int, *, gathered: bool = False) -> Callable[[Floats], Codes]:
    """The function from blocks [block size, blocks] to `Codes` that the options select.

    HQQ's fractional zero points are for 4-bit products only; an embedding (`gathered`) and 8 bits use k-quant instead.
    """
    if bits == 2:
        return round_ternary
    if options.method == "hqq" and bits == 4 and not gathered:
        return functools.partial(half_quadratic, bits=bits)
    if options.method == "rtn":
        return functools.partial(round_symmetric if options.symmetric else round_asymmetric, bits=bits)
    return functools.partial(search, bits=bits, symmetric=options.symmetric)


def blocks_of(part: Array, block_size: int, *, inputs_first: bool) -> Floats:
    """A part of a matrix as [block size, outputs, blocks]; part: [out, in], or [in, out] if `inputs_first`.

    The copy keeps the memory order of the part, so that reads are sequential.
    """
    inputs = part.shape[0 if inputs_first else 1]
    missing = -inputs % block_size
    padded = np.pad(part, ((0, missing), (0, 0)) if inputs_first else ((0, 0), (0, missing))) if missing else part
    if inputs_first:
        blocks = padded.reshape(-1, block_size, part.shape[1])  # [blocks, block size, outputs]
        return np.ascontiguousarray(blocks.swapaxes(0, 1), np.float32).swapaxes(1, 2)
    rows = padded.reshape(-1, block_size)
    return np.ascontiguousarray(rows.T, np.float32).reshape(block_size, len(part), -1)


def quantize_matrix(
    matrix: Array,
    find: Callable[[Floats], Codes],
    block_size: int,
    store: Callable[[slice, Codes], None],
    *,
    inputs_first: bool,
    row_scales: int = 0,
) -> None:
    """Quantise a matrix slice by slice; `store(outputs, codes)` receives codes [block size, outputs, blocks].

    matrix: [out, in], or [in, out] if `inputs_first`, of any float type. row_scales: the bits of codes whose scales are stored by
    `with_row_scales`; 0: in float32.
    """
    if inputs_first and matrix.flags.f_contiguous:
        matrix, inputs_first = matrix.T, False
    outputs, inputs = matrix.shape[::-1] if inputs_first else matrix.shape
    rows = max(16, SLICE // max(inputs, 1) // 16 * 16)  # even, so that two slices never share a byte

    def work(start: int) -> None:
        chosen = slice(start, min(start + rows, outputs))
        blocks = blocks_of(matrix[:, chosen] if inputs_first else matrix[chosen], block_size, inputs_first=inputs_first)
        order = (0, 2, 1) if inputs_first else (0, 1, 2)  # the memory order
        laid = blocks.transpose(order)
        found = find(laid.reshape(block_size, -1))

        def shaped(array: Floats) -> Floats:
            """Back to [..., outputs, blocks]."""
            kept = array.reshape(*array.shape[:-1], *laid.shape[1:])
            return kept.swapaxes(-1, -2) if inputs_first else kept

        zeros = None if found.zeros is None else shaped(found.zeros)
        offsets = None if found.offsets is None else shaped(found.offsets)
        found = Codes(shaped(found.codes), shaped(found.scales), zeros, offsets=offsets)
        store(chosen, with_row_scales(blocks, found, row_scales) if row_scales else found)

    for_each(range(0, outputs, rows), work)
