"""The bytes that pieces of a recipe stand for, made in chunks: rows one after the other, or the transpose of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import PackageError
from .recipe import Piece
from .sources import WIDTHS, Bytes, StoredTensor, WeightsFile
from .steps import Step, rotary_order, steps_of

CHUNK = 4 * 2**20
"""Bytes of a source that are read at a time."""
Numbers = npt.NDArray[np.generic]


def bytes_of(weights: WeightsFile, pieces: Sequence[Piece], *, is_transposed: bool = False) -> Iterator[Bytes]:
    """The bytes of pieces, in chunks; raises `PackageError` for one that the source does not have."""
    opened = [OpenPiece(weights, piece) for piece in pieces]
    for numbers in columns_of(opened) if is_transposed else (rows for each in opened for rows in each.in_parts()):
        yield np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)


class OpenPiece:
    """A piece and the rows that it is made of."""

    def __init__(self, weights: WeightsFile, piece: Piece) -> None:
        stored = weights.tensors.get(piece.tensor)
        step = None if stored is None else steps_of(stored.kind).get(piece.step)
        if stored is None or step is None or (piece.heads and stored.rows % (2 * piece.heads)):
            raise PackageError(f"the source has no {piece.step!r:.40} of {piece.tensor!r:.80}; fetch the recipe again")
        self.stored: StoredTensor = stored
        self.step: Step = step
        self.rows = weights.rows(piece.tensor)
        self.order = rotary_order(stored.rows, piece.heads) if piece.heads else None

    def in_parts(self) -> Iterator[Numbers]:
        """All rows, some at a time."""
        count = max(CHUNK // max(self.stored.row_bytes, 1), 1)
        for start in range(0, self.stored.rows, count):
            chosen = slice(start, start + count)
            yield self.step(self.rows[chosen] if self.order is None else self.rows[self.order[chosen]], self.stored.kind)

    def columns(self, chosen: slice, width: int) -> Numbers:
        """Some columns of all rows, whose numbers have `width` bytes in the source."""
        made = self.step(np.ascontiguousarray(self.rows[:, chosen]), self.stored.kind)
        numbers = made.view(f"V{width}") if made.dtype == np.uint8 else made
        return numbers if self.order is None else numbers[self.order]


def columns_of(pieces: Sequence[OpenPiece]) -> Iterator[Numbers]:
    """The rows of the transpose of pieces that lie one below the other; their numbers are in no blocks."""
    kinds = {(each.stored.kind, each.stored.row_bytes) for each in pieces}
    ((kind, row_bytes), *others) = kinds
    if others or kind not in WIDTHS:
        raise PackageError("the recipe transposes what has no columns; fetch it again")
    width = WIDTHS[kind]
    count = max(CHUNK // max(sum(each.stored.rows for each in pieces), 1) // width, 1) * width
    for start in range(0, row_bytes, count):
        yield np.concatenate([each.columns(slice(start, start + count), width) for each in pieces]).T
