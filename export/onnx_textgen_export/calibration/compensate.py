"""Rounding that makes up for its own error: GPTQ (Frantar et al. 2022), with scales found for what the layer is given.

Columns are rounded one after another, those that matter most first (its "act order"), and what each leaves is spread over the
columns that are still to come, as the second moments of the inputs say. Scales and zero points are found before, from the weights
as they are ("static groups"), so that the order of columns leaves no trace in what is stored. Outputs do not depend on each other.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

from ..passes.quantizers import Codes, Floats, blocks_of, inverses, search, with_row_scales

DAMPING = 0.1
"""Share of the mean second moment that is added to each; some thousand tokens say no more of a layer's inputs."""
STRETCHES = np.linspace(0.8, 1.2, 13)
"""Of the plain scale of 4-bit blocks; 8 bits have no codes to spare for cutting off."""
COLUMNS = 32
"""Rounded before the rest hears of what they left."""
ROWS = 8192
"""Outputs at a time, so that an output layer is never there several times."""


class Moments:
    """Second moments of a layer's inputs [in, in], and what compensation needs of them: made once for all widths of codes."""

    def __init__(self, moments: Floats) -> None:
        self.plain = moments
        diagonal = np.diagonal(moments).copy()
        diagonal[diagonal <= 0] = 0
        self.importance = (diagonal + max(DAMPING * float(diagonal.mean()), 1e-30)).astype(np.float32)
        """Of each input."""
        damped = moments.copy()
        np.fill_diagonal(damped, self.importance)
        self.damped = damped
        self.order = np.argsort(-self.importance, kind="stable")

    @functools.cached_property
    def spread(self) -> Floats:
        """How the error of a column is spread over later ones, in `order`: the upper Cholesky factor of the inverse.

        It is the inverse of the upper triangular R with R R' = moments, which a Cholesky factorisation from the end gives.
        """
        backwards = self.order[::-1]
        factor = torch.linalg.cholesky(torch.from_numpy(self.damped[np.ix_(backwards, backwards)])).flip(0, 1)
        spread: Floats = torch.linalg.solve_triangular(factor, torch.eye(len(factor)), upper=True).numpy()
        return spread

    def smoothed(self, scales: Floats) -> Moments:
        """Of inputs that are divided by `scales` [in]."""
        return Moments(self.plain / np.outer(scales, scales))

    def loss(self, error: Floats) -> float:
        """What errors [outputs, in] of a layer's weights come to in its outputs, summed over those."""
        return float(np.einsum("oi,oi->", error @ self.damped, error))


def round_compensated(matrix: Floats, moments: Moments, bits: int, block_size: int, *, symmetric: bool = False) -> Codes:
    """Codes of a matrix [out, in]: [block size, out, blocks], scales and zero points [out, blocks]."""
    parts = [
        round_rows(matrix[start : start + ROWS], moments, bits, block_size, symmetric=symmetric)
        for start in range(0, len(matrix), ROWS)
    ]
    codes, scales, zeros, scale_codes, row_scales = (
        None if getattr(parts[0], name) is None else np.concatenate([getattr(part, name) for part in parts], axis)
        for name, axis in (("codes", 1), ("scales", 0), ("zeros", 0), ("scale_codes", 0), ("row_scales", 0))
    )
    assert codes is not None, "every rounding has codes"
    assert scales is not None, "every rounding has scales"
    return Codes(codes, scales, zeros, scale_codes, row_scales)


def round_rows(matrix: Floats, moments: Moments, bits: int, block_size: int, *, symmetric: bool) -> Codes:
    """See `round_compensated`."""
    blocks = blocks_of(matrix, block_size, inputs_first=False)  # [block size, out, blocks]
    size, outputs, count = blocks.shape
    importance = np.pad(moments.importance, (0, size * count - matrix.shape[1])).reshape(count, size).T[:, None]
    weights = np.ascontiguousarray(np.broadcast_to(importance, blocks.shape)).reshape(size, -1)
    found = search(blocks.reshape(size, -1), bits, symmetric=symmetric, weights=weights, stretches=STRETCHES if bits == 4 else None)
    zeros = None if found.zeros is None else found.zeros.reshape(outputs, count)
    grid = with_row_scales(blocks, Codes(blocks, found.scales.reshape(outputs, count), zeros), bits)
    codes = compensated_codes(matrix, moments, grid, bits, block_size)
    padded = np.pad(codes, ((0, 0), (0, size * count - matrix.shape[1])))
    return Codes(padded.reshape(outputs, count, size).transpose(2, 0, 1), grid.scales, zeros, grid.scale_codes, grid.row_scales)


def compensated_codes(matrix: Floats, moments: Moments, grid: Codes, bits: int, block_size: int) -> Floats:
    """The codes [out, in] of given scales and zero points."""
    order, spread = moments.order, moments.spread
    left = np.ascontiguousarray(matrix[:, order].T)  # [in, out], in the order of rounding
    scales = np.ascontiguousarray(grid.scales.T)
    inverse = inverses(scales)
    middle = np.float32(1 << (bits - 1))
    zeros = np.full_like(scales, middle) if grid.zeros is None else np.ascontiguousarray(grid.zeros.T)
    codes = np.empty_like(left)
    most = np.float32(2**bits - 1)
    for start in range(0, len(left), COLUMNS):
        end = min(start + COLUMNS, len(left))
        errors = np.empty((end - start, left.shape[1]), np.float32)
        for column in range(start, end):
            block = order[column] // block_size
            code = codes[column]
            np.multiply(left[column], inverse[block], out=code)
            code += zeros[block]
            np.rint(code, out=code)
            np.clip(code, 0, most, out=code)
            error = (left[column] - (code - zeros[block]) * scales[block]) / spread[column, column]
            errors[column - start] = error
            if column + 1 < end:
                left[column + 1 : end] -= spread[column, column + 1 : end, None] * error
        left[end:] -= spread[start:end, end:].T @ errors
    out = np.empty_like(codes)
    out[order] = codes
    return np.ascontiguousarray(out.T)
