"""The numbers of GGUF's K-quants, and the blocks that an export writes for them.

A super-block of 256 weights has blocks of 16 or 32, each with a step, and in some kinds a minimum, which are small integers times a
number of the super-block (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h). A package has one scale for a block, in
float32, and the lowest number of the block as its offset if there are minima.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .sources import SUPER_BLOCK, SUPER_BLOCKS, Bytes

Floats = npt.NDArray[np.float32]
WITH_MINIMA = frozenset({"Q2_K", "Q4_K", "Q5_K"})
CODE_BITS = {"Q2_K": 4, "Q3_K": 4, "Q4_K": 4, "Q5_K": 8, "Q6_K": 8}
"""Bits that a package has for them."""
SHIFTS = {"Q2_K": 6, "Q3_K": 8, "Q4_K": 0, "Q5_K": 112, "Q6_K": 128}
"""What is added to whole numbers of steps, so that codes lie around the middle."""
PAIRS, QUARTERS, EIGHTHS = (0, 4), (0, 2, 4, 6), tuple(range(8))
"""By how many bits the numbers in a byte are shifted."""


@dataclasses.dataclass(frozen=True, slots=True)
class Blocks:
    """Weights as whole numbers of steps above a minimum, as the file has them."""

    codes: Bytes
    """[rows, blocks, weights]"""
    middle: int
    """The code of zero steps."""
    steps: Floats
    """[rows, blocks]"""
    minima: Floats | None
    """What is subtracted; None: nothing."""

    def numbers_of(self, codes: npt.NDArray[np.generic], out: Floats | None = None) -> Floats:
        """The weights of some codes [rows, blocks, any number], in `out` if it is given."""
        numbers = np.empty(codes.shape, np.float32) if out is None else out
        numbers[:] = codes
        numbers -= np.float32(self.middle)
        numbers *= self.steps[:, :, None]
        if self.minima is not None:
            numbers -= self.minima[:, :, None]
        return numbers


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """Weights as a package has them: whole numbers of a positive scale."""

    codes: Bytes
    """[rows, blocks, weights], around the middle."""
    scales: Floats
    """[rows, blocks]"""
    offsets: Floats | None
    """Added to what the codes from `SHIFTS` on stand for; None: nothing."""

    def packed(self, bits: int) -> Bytes:
        """The codes in bytes; those of 4 bits two to a byte, the earlier in the lower half."""
        return self.codes if bits == 8 else together(self.codes[:, :, 0::2], self.codes[:, :, 1::2])


def spread(packed: Bytes, width: int, shifts: Sequence[int], mask: int) -> Bytes:
    """Numbers of few bits [super-blocks, 256 or fewer]: the same bits of `width` bytes come together."""
    parts = np.ascontiguousarray(packed).reshape(len(packed), -1, width)
    found = np.empty((len(packed), parts.shape[1], len(shifts), width), np.uint8)
    for place, shift in enumerate(shifts):
        found[:, :, place] = parts >> np.uint8(shift) & np.uint8(mask)
    return found.reshape(len(packed), -1)


def together(low: Bytes, high: Bytes, bits: int = 4) -> Bytes:
    """Numbers of which the lower bits are apart from those above."""
    found: Bytes = low | high << np.uint8(bits)
    return found


def halves(blocks: Bytes, start: int) -> Floats:
    """A float16 number of each super-block; [super-blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def six_bits(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Scales and minima of 8 blocks [super-blocks, 8] from 12 bytes: the second four have their upper two bits with the first."""
    scales, minima, mixed = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    return (
        np.concatenate([scales & 63, mixed & 15 | scales >> 2 & 48], axis=1),
        np.concatenate([minima & 63, mixed >> 4 | minima >> 2 & 48], axis=1),
    )


def read(rows: Bytes, kind: str) -> Blocks:
    """The blocks of rows of bytes [rows, bytes]."""
    blocks, middle = rows.reshape(-1, SUPER_BLOCKS[kind]), 0
    minima: Floats | None = None
    if kind == "Q2_K":
        code = spread(blocks[:, 16:80], 32, QUARTERS, 3)
        steps = halves(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32)
        minima = halves(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32)
    elif kind == "Q3_K":
        code, middle = together(spread(blocks[:, 32:96], 32, QUARTERS, 3), spread(blocks[:, :32], 32, EIGHTHS, 1), 2), 4
        scale = together(spread(blocks[:, 96:104], 8, PAIRS, 15), spread(blocks[:, 104:108], 4, QUARTERS, 3))
        steps = halves(blocks, 108) * (scale.astype(np.float32) - np.float32(32))
    elif kind == "Q6_K":
        code, middle = together(spread(blocks[:, :128], 64, PAIRS, 15), spread(blocks[:, 128:192], 32, QUARTERS, 3)), 32
        steps = halves(blocks, 208) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    else:
        code = spread(blocks[:, -128:], 32, PAIRS, 15)
        if kind == "Q5_K":
            code = together(code, spread(blocks[:, 16:48], 32, EIGHTHS, 1))
        scale, lowest = six_bits(blocks[:, 4:16])
        steps, minima = halves(blocks, 0) * scale.astype(np.float32), halves(blocks, 2) * lowest.astype(np.float32)
    size = SUPER_BLOCK // steps.shape[1]
    minima = None if minima is None else minima.reshape(len(rows), -1)
    return Blocks(code.reshape(len(rows), -1, size), middle, steps.reshape(len(rows), -1), minima)


def kept(rows: Bytes, kind: str) -> Kept:
    """The blocks of rows of bytes as a package has them."""
    blocks = read(rows, kind)
    by_place = np.ascontiguousarray(blocks.codes.reshape(-1, blocks.codes.shape[2]).T)  # the order that NumPy reduces fastest
    low, high = (end.reshape(blocks.steps.shape).astype(np.int16) for end in (by_place.min(axis=0), by_place.max(axis=0)))
    at_low, at_high = (blocks.numbers_of(end[:, :, None])[:, :, 0] for end in (low, high))
    is_reversed, offsets = blocks.steps < 0, None
    if blocks.minima is None:
        zero, is_high = np.full_like(low, blocks.middle), np.abs(at_high) > np.abs(at_low)
        heights, counts = np.where(is_high, np.abs(at_high), np.abs(at_low)), np.abs(np.where(is_high, high, low) - zero)
    else:
        zero, offsets = np.where(is_reversed, high, low), np.minimum(at_low, at_high)
        heights, counts = np.maximum(at_low, at_high) - offsets, high - low
    scales = np.divide(heights, counts, out=np.zeros_like(heights), where=(counts > 0) & (heights > 0))
    factors = np.where(scales == 0, 0, np.where(is_reversed, -1, 1)).astype(np.int16)
    shifts = SHIFTS[kind] - factors * zero
    whole = blocks.codes * factors.astype(np.uint8)[:, :, None] + shifts.astype(np.uint8)[:, :, None]  # modulo 256
    return Kept(whole, scales, offsets)


def codes(rows: Bytes, kind: str) -> Bytes:
    """Codes in bytes."""
    return kept(rows, kind).packed(CODE_BITS[kind])


def scales(rows: Bytes, kind: str) -> Floats:
    """The scale of each block."""
    return kept(rows, kind).scales


def offsets(rows: Bytes, kind: str) -> Floats:
    """The lowest number of each block."""
    found = kept(rows, kind).offsets
    assert found is not None, "the kind has minima"
    return found


def dequantised(rows: Bytes, kind: str) -> Floats:
    """The weights in float32."""
    blocks = read(rows, kind)
    return blocks.numbers_of(blocks.codes).reshape(len(rows), -1)


def steps_of(kind: str) -> Mapping[str, Callable[[Bytes, str], npt.NDArray[np.generic]]]:
    """The steps of a recipe that tensors of a kind have, by name."""
    found: dict[str, Callable[[Bytes, str], npt.NDArray[np.generic]]]
    found = {f"codes of {CODE_BITS[kind]} bits": codes, "float32 scales": scales, "float32": dequantised}
    return found | {"float32 offsets": offsets} if kind in WITH_MINIMA else found
