"""Finds the integers that blocks of numbers already are: the step and the zero point of each block, without rounding anything.

Weights of a quantised checkpoint (GPTQ, AWQ, ...) are multiples of one step per block once they are dequantised. The step follows
from the numbers alone: it is the smallest gap between two of them, or a fraction of it where no two are neighbours.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .quantizers import Codes, Floats, inverses

TOLERANCE = np.float32(3e-7)
"""Relative difference of numbers that count as equal: a product with a float32 step is rounded by less."""
SMALLEST_GAP = np.float32(1e-5)
"""Relative to a block's largest magnitude; smaller gaps are the rounding of equal numbers."""
NEAR = np.float32(5e-6)
"""Relative distance from a float16 number that rounding explains; those numbers are a hundred times as far apart."""
MOST_FRACTIONS = 128
"""Steps that are tried: the smallest gap, half of it, a third of it, ..."""


def find_grid(blocks: Floats, bits: int, *, symmetric: bool) -> Codes:
    """The codes of blocks [block size, blocks] that are multiples of one step each; the step of other blocks is NaN.

    symmetric: zero has the middle code; otherwise each block has a zero point, which is the middle code if that is possible.
    """
    most, half = (1 << bits) - 1, 1 << (bits - 1)
    columns = np.arange(blocks.shape[1])
    peaks = np.abs(blocks).argmax(axis=0)
    largest = blocks[peaks, columns]
    steps = np.where(largest == 0, np.float32(0), np.float32(np.nan))
    codes, zeros = np.full_like(blocks, half), np.full_like(largest, half)
    gaps = smallest_gaps(blocks, np.abs(largest))
    left = np.flatnonzero(largest != 0)
    for parts in range(1, MOST_FRACTIONS):
        if not left.size:
            break
        part, peak = blocks[:, left], largest[left]
        count = np.rint(peak / (gaps[left] / np.float32(parts)))  # the peak's number of steps, from which the step is exact
        tried = np.divide(peak, count, out=np.zeros_like(peak), where=count != 0)
        whole = np.rint(part * inverses(tried))
        fits = (np.abs(whole * tried - part) <= TOLERANCE * np.abs(part)).all(axis=0)
        lowest, highest = whole.min(axis=0), whole.max(axis=0)
        if symmetric:
            zero = np.full_like(tried, half)
            fits &= (lowest >= -half) & (highest <= half - 1)
        else:
            zero = np.clip(half, np.maximum(-lowest, 0), np.minimum(most - highest, most)).astype(np.float32)
            fits &= (lowest + zero >= 0) & (highest + zero <= most)
        good = left[fits]
        steps[good], zeros[good], codes[:, good] = tried[fits], zero[fits], (whole + zero)[:, fits]
        left = left[~fits & (np.abs(count) <= most)]  # smaller steps would need even more codes
    return Codes(codes, steps, None if symmetric else zeros)


def smallest_gaps(blocks: Floats, largest: Floats) -> Floats:
    """The smallest difference between two numbers of each block, or between one and zero; [blocks]."""
    with_zero = np.concatenate([blocks, np.zeros_like(blocks[:1])])
    with_zero.sort(axis=0)
    gaps = np.diff(with_zero, axis=0)
    gaps[gaps <= SMALLEST_GAP * largest] = np.inf
    found: npt.NDArray[np.float32] = gaps.min(axis=0)
    return np.where(np.isfinite(found), found, np.float32(1))


def find_offset_grid(blocks: Floats, bits: int) -> Codes:
    """The codes of blocks [block size, blocks] of which each is an offset and multiples of a step; the step of others is NaN.

    Step and offset are float16 numbers where such give every number back, as in llama.cpp's Q4_1.
    """
    most, lowest = (1 << bits) - 1, blocks.min(axis=0)
    codes, steps = count_steps(blocks, lowest, most)
    highest, halves, offsets = codes.max(axis=0), nearest_half(steps), lowest.copy()
    left = np.flatnonzero(np.abs(halves - steps) <= NEAR * steps)
    for below in range(most + 1):  # the lowest number need not have code 0
        exact = lowest[left] - below * halves[left]
        offset = nearest_half(exact)
        near = (np.abs(offset - exact) <= NEAR * np.abs(exact)) & (highest[left] + below <= most)
        chosen, offset = left[near], offset[near]
        same = ((codes[:, chosen] + below) * halves[chosen] + offset == blocks[:, chosen]).all(axis=0)
        good = chosen[same]
        codes[:, good] += below
        steps[good], offsets[good] = halves[good], offset[same]
        left = np.setdiff1d(left, good, assume_unique=True)
    return Codes(codes, steps, None, offsets=offsets)


def count_steps(blocks: Floats, lowest: Floats, most: int) -> tuple[Floats, Floats]:
    """How many steps each number of a block is above the lowest, and the step; NaN where more than `most` would be needed."""
    highest = blocks.max(axis=0)
    heights, largest = highest - lowest, np.maximum(highest, -lowest)
    counts, fits = whole_steps(blocks, lowest, largest, heights / np.float32(most))
    counts *= fits
    steps = np.where(heights == 0, np.float32(0), np.where(fits, heights / np.float32(most), np.float32(np.nan)))
    left = np.flatnonzero(~fits & (heights != 0))

    def take(needed: Floats) -> npt.NDArray[np.bool_]:
        """Keep the counts of the blocks that are left and need that many steps; returns which those are."""
        tried = heights[left] / needed
        whole, fits = whole_steps(blocks.take(left, axis=1), lowest[left], largest[left], tried)
        fits &= needed <= most
        counts[:, left[fits]], steps[left[fits]] = whole[:, fits], tried[fits]
        return fits

    for needed in range(most - 1, most // 2, -1):  # most blocks have both the lowest and the highest code, or nearly
        left = left[~take(np.full_like(heights[left], needed))]
    gaps = smallest_gaps(blocks[:, left] - lowest[left], largest[left])
    for parts in range(1, most + 1):
        needed_steps = np.rint(heights[left] * parts / gaps)
        is_left = ~take(needed_steps) & (needed_steps <= most)  # smaller steps would need even more codes
        left, gaps = left[is_left], gaps[is_left]
    return counts, steps


def whole_steps(blocks: Floats, lowest: Floats, largest: Floats, steps: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """How many of these steps each number of a block is above the lowest, and which blocks consist of such numbers."""
    counts = blocks - lowest
    counts *= inverses(steps)
    np.rint(counts, out=counts)
    errors = counts * steps
    errors += lowest
    errors -= blocks
    return counts, np.maximum(errors.max(axis=0), -errors.min(axis=0)) <= TOLERANCE * largest


def nearest_half(values: Floats) -> Floats:
    """The nearest float16 number of each."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32)
