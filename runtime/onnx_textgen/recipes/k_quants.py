"""The numbers of GGUF's K-quants, and the blocks that an export writes for them.

A super-block of 256 weights has blocks of 16 or 32, each with a step, and in some kinds a minimum, which are small integers times a
number of the super-block (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h). The exporter finds steps and offsets
from the numbers alone; what it finds, in float32, is computed here in the same way.
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

    whole: Floats
    """[rows, blocks, weights]"""
    steps: Floats
    """[rows, blocks]"""
    minima: Floats | None
    """What is subtracted; None: nothing."""

    @property
    def numbers(self) -> Floats:
        """The weights; [rows, blocks, weights]."""
        product: Floats = self.steps[:, :, None] * self.whole
        return product if self.minima is None else product - self.minima[:, :, None]

    def kept(self) -> tuple[Floats, Floats, Floats | None]:
        """The codes, scales and offsets of a package; symmetric codes are around zero, others from zero."""
        numbers, whole = self.numbers, self.whole * np.where(self.steps < 0, np.float32(-1), np.float32(1))[:, :, None]
        offsets: Floats | None = None
        if self.minima is None:
            largest = np.abs(numbers).argmax(axis=2)[:, :, None]
            heights, counts = (np.abs(np.take_along_axis(each, largest, 2)[:, :, 0]) for each in (numbers, whole))
        else:
            offsets = numbers.min(axis=2)
            whole -= whole.min(axis=2, keepdims=True)
            heights, counts = numbers.max(axis=2) - offsets, whole.max(axis=2)
        scales = np.divide(heights, counts, out=np.zeros_like(heights), where=(counts > 0) & (heights > 0))
        whole[scales == 0] = 0
        return whole, scales, offsets


def spread(packed: Bytes, width: int, shifts: Sequence[int], mask: int) -> Bytes:
    """Numbers of few bits [super-blocks, 256 or fewer]: the same bits of `width` bytes come together."""
    parts = packed.reshape(len(packed), -1, 1, width) >> np.array(shifts, np.uint8)[:, None]
    found: Bytes = (parts & np.uint8(mask)).reshape(len(packed), -1)
    return found


def together(low: Bytes, high: Bytes) -> Bytes:
    """Numbers of which the lower four bits are apart from those above."""
    found: Bytes = low | high << np.uint8(4)
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
    blocks = rows.reshape(-1, SUPER_BLOCKS[kind])
    minima: Floats | None = None
    if kind == "Q2_K":
        whole = spread(blocks[:, 16:80], 32, QUARTERS, 3).astype(np.float32)
        steps = halves(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32)
        minima = halves(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32)
    elif kind == "Q3_K":
        low, has_high = spread(blocks[:, 32:96], 32, QUARTERS, 3), spread(blocks[:, :32], 32, EIGHTHS, 1)
        whole = low.astype(np.float32) - np.float32(4) * (1 - has_high.astype(np.float32))
        scale = together(spread(blocks[:, 96:104], 8, PAIRS, 15), spread(blocks[:, 104:108], 4, QUARTERS, 3))
        steps = halves(blocks, 108) * (scale.astype(np.float32) - np.float32(32))
    elif kind == "Q6_K":
        code = together(spread(blocks[:, :128], 64, PAIRS, 15), spread(blocks[:, 128:192], 32, QUARTERS, 3))
        whole = code.astype(np.float32) - np.float32(32)
        steps = halves(blocks, 208) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    else:
        code = spread(blocks[:, -128:], 32, PAIRS, 15)
        if kind == "Q5_K":
            code = together(code, spread(blocks[:, 16:48], 32, EIGHTHS, 1))
        whole = code.astype(np.float32)
        scale, lowest = six_bits(blocks[:, 4:16])
        steps, minima = halves(blocks, 0) * scale.astype(np.float32), halves(blocks, 2) * lowest.astype(np.float32)
    size = SUPER_BLOCK // steps.shape[1]
    minima = None if minima is None else minima.reshape(len(rows), -1)
    return Blocks(whole.reshape(len(rows), -1, size), steps.reshape(len(rows), -1), minima)


def codes(rows: Bytes, kind: str) -> Bytes:
    """Codes around the middle; those of 4 bits two to a byte, the earlier in the lower half."""
    whole = (read(rows, kind).kept()[0] + np.float32(SHIFTS[kind])).astype(np.uint8)
    return whole if CODE_BITS[kind] == 8 else together(whole[:, :, 0::2], whole[:, :, 1::2])


def scales(rows: Bytes, kind: str) -> Floats:
    """The scale of each block."""
    return read(rows, kind).kept()[1]


def offsets(rows: Bytes, kind: str) -> Floats:
    """The lowest number of each block."""
    found = read(rows, kind).kept()[2]
    assert found is not None, "the kind has minima"
    return found


def dequantised(rows: Bytes, kind: str) -> Floats:
    """The weights in float32."""
    return read(rows, kind).numbers.reshape(len(rows), -1)


def steps_of(kind: str) -> Mapping[str, Callable[[Bytes, str], npt.NDArray[np.generic]]]:
    """The steps of a recipe that tensors of a kind have, by name."""
    found: dict[str, Callable[[Bytes, str], npt.NDArray[np.generic]]]
    found = {f"codes of {CODE_BITS[kind]} bits": codes, "float32 scales": scales, "float32": dequantised}
    return found | {"float32 offsets": offsets} if kind in WITH_MINIMA else found
