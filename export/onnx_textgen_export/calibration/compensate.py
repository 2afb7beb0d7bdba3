"""Rounding that compensates for its own error: GPTQ (Frantar et al. 2022), with scales found for the inputs of the layer.

Columns are rounded one after another, the most important first (its "act order"), and the error of each is spread over the
remaining columns according to the second moments of the inputs. Scales and zero points are found before, from the original weights
("static groups"), so the stored form does not depend on the order of columns. Outputs are independent of each other.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..passes.quantization.quantizers import Array, Codes, Floats, inverses, quantize_matrix, search
from ..threads import for_each

DAMPING = 0.1
"""Share of the mean second moment that is added to each, because a few thousand tokens estimate them roughly."""
STRETCHES = np.linspace(0.8, 1.2, 13)
"""Factors of the plain scale to try for 4-bit blocks; clipping does not pay at 8 bits."""
COLUMNS, FEWER_COLUMNS = 256, 32
"""Columns rounded before their errors are spread over the rest, and within those before they are spread over the others."""
ROWS = 256
"""Rows whose errors are computed together."""
TRIANGLE = 512
"""Larger triangular matrices are inverted in parts."""


class Moments:
    """Second moments of a layer's inputs [in, in], and what compensation derives from them, once for all widths of codes."""

    def __init__(self, plain: Floats, divisors: Floats | None = None) -> None:
        """`divisors` [in]: of the inputs."""
        self.plain, self.divisors = plain, divisors
        diagonal = np.maximum(np.diagonal(plain), 0)
        diagonal = diagonal if divisors is None else diagonal / np.square(divisors)
        self.importance = (diagonal + max(DAMPING * float(diagonal.mean()), 1e-30)).astype(np.float32)
        """Damped second moment of each input."""
        self.order = np.argsort(-self.importance, kind="stable")

    @functools.cached_property
    def spread(self) -> Floats:
        """How the error of a column is spread over later ones, in `order`: the upper Cholesky factor of the inverse.

        It is the inverse of the upper triangular R with R R' = moments, which a Cholesky factorisation from the end gives.
        """
        backwards = torch.from_numpy(self.order[::-1].copy())
        factor = torch.from_numpy(self.plain)[backwards][:, backwards]
        if self.divisors is not None:
            shares = torch.from_numpy(1 / self.divisors)[backwards]
            factor.mul_(shares).mul_(shares[:, None])
        factor.diagonal().copy_(torch.from_numpy(self.importance)[backwards])
        torch.linalg.cholesky(factor, out=factor)
        invert_lower(factor)
        spread: Floats = factor.flip(0, 1).numpy()
        return spread

    def smoothed(self, scales: Floats) -> Moments:
        """The moments of inputs that are divided by `scales` [in]."""
        return Moments(self.plain, scales)


def invert_lower(matrix: Tensor) -> None:
    """Invert a lower triangular matrix in place, in parts: three times as fast as solving for the unit matrix."""
    if len(matrix) <= TRIANGLE:
        matrix.copy_(torch.linalg.solve_triangular(matrix, torch.eye(len(matrix)), upper=False))
        return
    half = len(matrix) // 2
    first, last, below = matrix[:half, :half], matrix[half:, half:], matrix[half:, :half]
    invert_lower(first)
    invert_lower(last)
    below.copy_(-(last @ (below @ first)))


def round_compensated(
    matrix: Floats, moments: Moments, bits: int, block_size: int, *, symmetric: bool = False
) -> tuple[Codes, float]:
    """Codes of a matrix [out, in]: [block size, out, blocks], scales and zero points [out, blocks]; and their loss.

    The loss is the squared error of the outputs by the moments M: the sum of e M e' over the rows e of the weights' error.
    """
    grid = weighted_grid(matrix, moments.importance, bits, block_size, symmetric=symmetric)
    codes, loss = compensated_codes(matrix, moments, grid, bits, block_size)
    return dataclasses.replace(grid, codes=codes), loss


def round_uncompensated(
    matrix: Floats, moments: Moments, bits: int, block_size: int, *, symmetric: bool = False
) -> tuple[Codes, float]:
    """Like `round_compensated`, but each weight is rounded independently, and the loss ignores correlations of inputs."""
    found, losses = weighted_grid(matrix, moments.importance, bits, block_size, symmetric=symmetric), list[float]()

    def lose(start: int) -> None:
        rows = slice(start, start + ROWS)
        part = Codes(found.codes[:, rows], found.scales[rows], None if found.zeros is None else found.zeros[rows])
        error = part.values(bits, matrix.shape[1]) - matrix[rows]
        losses.append(float(np.einsum("oi,oi->i", error, error) @ moments.importance))

    for_each(range(0, len(matrix), ROWS), lose)
    return found, sum(losses)


def weighted_grid(matrix: Floats, importance: Floats, bits: int, block_size: int, *, symmetric: bool) -> Codes:
    """Uncompensated codes of a matrix [out, in], with scales and zero points for inputs of this importance [in]."""
    missing = -matrix.shape[1] % block_size
    weights = np.pad(importance, (0, missing)).reshape(-1, block_size).T  # [block size, blocks]
    count, stretches, parts = weights.shape[1], STRETCHES if bits == 4 else None, dict[int, Codes]()

    def find(blocks: Floats) -> Codes:
        rows = blocks.shape[1] // count
        return search(blocks, bits, symmetric=symmetric, weights=np.tile(weights, rows), stretches=stretches)

    def store(chosen: slice, found: Codes) -> None:
        parts[chosen.start] = dataclasses.replace(found, codes=found.codes.astype(np.uint8))

    quantize_matrix(matrix, find, block_size, store, inputs_first=False, row_scales=bits)
    return joined([parts[start] for start in sorted(parts)])


def joined(parts: Sequence[Codes]) -> Codes:
    """The concatenated codes of groups of outputs."""
    if len(parts) == 1:
        return parts[0]
    codes, scales, zeros, scale_codes, row_scales = (
        None if getattr(parts[0], name) is None else np.concatenate([getattr(part, name) for part in parts], axis)
        for name, axis in (("codes", 1), ("scales", 0), ("zeros", 0), ("scale_codes", 0), ("row_scales", 0))
    )
    assert codes is not None, "every rounding has codes"
    assert scales is not None, "every rounding has scales"
    return Codes(codes, scales, zeros, scale_codes, row_scales)


def compensated_codes(matrix: Floats, moments: Moments, grid: Codes, bits: int, block_size: int) -> tuple[Array, float]:
    """The codes [block size, out, blocks] for given scales and zero points, and the loss.

    If e are the errors of the columns at rounding, divided by the diagonal of U (`spread`), the error of all weights is e U;
    U' U is the inverse of the moments, so the loss is the sum of e squared.
    """
    order, spread = moments.order.tolist(), torch.from_numpy(moments.spread)
    blocks, most = [place // block_size for place in order], 2**bits - 1
    left = torch.from_numpy(matrix).T.contiguous()[order]  # [in, out], in the order of rounding
    scales = torch.from_numpy(np.ascontiguousarray(grid.scales.T))
    inverse = torch.from_numpy(inverses(scales.numpy()))
    zeros = torch.full_like(scales, 1 << (bits - 1)) if grid.zeros is None else torch.from_numpy(np.ascontiguousarray(grid.zeros.T))
    codes = torch.zeros(len(scales) * block_size, left.shape[1], dtype=torch.uint8)  # [in, out], in their own order
    code, errors = torch.empty_like(left[0]), torch.empty(COLUMNS, left.shape[1])  # the errors of code minus weight
    shares, loss = (1 / spread.diagonal()).tolist(), 0.0
    for start in range(0, len(left), COLUMNS):
        end = min(start + COLUMNS, len(left))
        for first in range(start, end, FEWER_COLUMNS):
            last = min(first + FEWER_COLUMNS, end)
            for column in range(first, last):
                scale, zero = scales[blocks[column]], zeros[blocks[column]]
                torch.addcmul(zero, left[column], inverse[blocks[column]], out=code).round_().clamp_(0, most)
                codes[order[column]] = code
                error = torch.sub(code, zero, out=errors[column - start]).mul_(scale).sub_(left[column]).mul_(shares[column])
                left[column + 1 : last].addr_(spread[column, column + 1 : last], error)
            left[last:end].addmm_(spread[first:last, last:end].T, errors[first - start : last - start])
        left[end:].addmm_(spread[start:end, end:].T, errors[: end - start])
        loss += float(errors[: end - start].square().sum())
    return codes.reshape(-1, block_size, codes.shape[1]).permute(1, 2, 0).contiguous().numpy(), loss
