"""Recognise rotary embeddings by what they compute, however they are written, and tabulate their angles.

Between a projection and the attention a model may move columns (reshape, split, transpose) and rotate pairs of them by angles that
depend on the position. `Movement` runs those nodes separately; `find_rotation` probes them with unit vectors, and `make_tables`
tabulates cosine and sine of every position. Angles that depend on more than the position (LongRoPE's switch, dynamic NTK) are
detected and left unchanged, as is everything that is not a rotation: a final comparison on random numbers decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from .probing import Array, Piece, asked_by, plain_text

FEW = 8
"""Positions in a probe."""
TOLERANCE = 1e-6
LARGEST_RUN = 1 << 22
"""Most numbers per run while tabulating."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rotation:
    """Which channels of a head rotate with the position, and in which pairs."""

    size: int
    """Number of channels that rotate: the first ones of a head."""
    interleaved: bool
    """Pairs are (0, 1), (2, 3) ...; else (0, size / 2), (1, size / 2 + 1) ..."""

    @property
    def firsts(self) -> npt.NDArray[np.int64]:
        """The first of each pair."""
        return np.arange(0, self.size, 2) if self.interleaved else np.arange(self.size // 2)

    @property
    def seconds(self) -> npt.NDArray[np.int64]:
        """The second of each pair."""
        return self.firsts + (1 if self.interleaved else self.size // 2)


class Movement:
    """The nodes between a value and the attention operator that reads it, as a function."""

    def __init__(self, graph: ir.Graph, root: ir.Value, value: ir.Value) -> None:
        """Raises ValueError if `value` depends on more than `root`, the mask and the number of new tokens."""
        shape = root.shape
        if shape is None or len(shape) not in {3, 4} or root.dtype != ir.DataType.FLOAT:
            raise ValueError(f"{root.name} is not [batch, new, ...] in float32")
        sizes = [size for size in shape if isinstance(size, int)]
        if len(sizes) != len(shape) - 2 or not isinstance(shape[-1], int):
            raise ValueError(f"{root.name} has an unexpected shape")
        self.heads_first = len(shape) == 4 and isinstance(shape[1], int)
        self.sizes, self.width = tuple(sizes), int(np.prod(sizes))
        self.root = str(root.name)
        self.piece = Piece(graph, [root, *asked_by(graph)], [value])

    def __call__(self, x: Array, mask: npt.NDArray[np.int64]) -> Array:
        """x [batch, new, width] -> [batch, new, width of the attention's input]; `mask` [batch, past + new]."""
        batch, new, _ = x.shape
        root = x.reshape(batch, new, *self.sizes)
        feeds = plain_text(batch, new, mask) | {self.root: root.transpose(0, 2, 1, 3) if self.heads_first else root}
        moved: Array = self.piece.run(feeds)[0].reshape(batch, new, -1)
        return moved

    def at(self, x: Array, start: int) -> Array:
        """One row x [new, width] after `start` tokens."""
        moved: Array = self(x[None], np.ones((1, start + len(x)), np.int64))[0]
        return moved


def find_columns(move: Movement) -> npt.NDArray[np.int64] | None:
    """For each column of the attention's input, its column in the root; found at position 0, where nothing rotates."""
    scale = move.at(np.ones((FEW, move.width), np.float32), 0)[0]
    numbered = np.broadcast_to(np.arange(1, move.width + 1, dtype=np.float32), (FEW, move.width))
    if not np.isfinite(scale).all() or (scale <= 0).any():
        return None
    columns = np.rint(move.at(numbered, 0)[0] / scale).astype(np.int64) - 1
    return columns if ((columns >= 0) & (columns < move.width)).all() else None


def only_moves(move: Movement, columns: npt.NDArray[np.int64]) -> bool:
    """Return whether the columns are only moved."""
    x = random_rows(FEW, move.width)
    return np.array_equal(move.at(x, 0), x[:, columns]) and np.array_equal(move.at(x, 5), x[:, columns])


def random_rows(rows: int, width: int) -> Array:
    """Random numbers that are the same in every run."""
    return np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)


def close(found: Array, wanted: Array) -> bool:
    """Equal except for rounding, which differs between long and short vectors."""
    return bool(np.abs(found - wanted).max() <= TOLERANCE * max(1.0, float(np.abs(wanted).max())))


def heads_like(head: Array, move: Movement, columns: npt.NDArray[np.int64], rows: int) -> Array:
    """Rows for the root whose every head, once moved, is `head`."""
    x = np.zeros((rows, move.width), np.float32)
    x[:, columns] = np.tile(head, len(columns) // len(head))
    return x


def find_rotation(move: Movement, columns: npt.NDArray[np.int64], head_size: int) -> Rotation | None:
    """How heads rotate, found by where unit vectors go."""
    if len(set(columns.tolist())) != len(columns):
        return None
    unit = np.zeros(head_size, np.float32)
    unit[0] = 1
    reached = np.flatnonzero(move.at(heads_like(unit, move, columns, FEW), 0)[1:, :head_size].any(axis=0))
    if len(reached) != 2 or reached[0] != 0:
        return None
    if reached[1] > 1:
        rotation = Rotation(2 * int(reached[1]), interleaved=False)
        return rotation if rotation.size <= head_size else None
    evens = (np.arange(head_size) % 2 == 0).astype(np.float32)
    pairs = np.flatnonzero(move.at(heads_like(evens, move, columns, FEW), 0)[1:, 1:head_size:2].any(axis=0))
    return Rotation(2 * len(pairs), interleaved=True) if np.array_equal(pairs, np.arange(len(pairs))) else None


def rotate(x: Array, cos: Array, sin: Array, rotation: Rotation, head_size: int) -> Array:
    """The definition: x [new, heads * head_size] rotated by the angles of each row, [new, size / 2]."""
    heads = x.reshape(len(x), -1, head_size).copy()
    first, second = heads[:, :, rotation.firsts], heads[:, :, rotation.seconds]
    heads[:, :, rotation.firsts] = first * cos[:, None] - second * sin[:, None]
    heads[:, :, rotation.seconds] = first * sin[:, None] + second * cos[:, None]
    return heads.reshape(len(x), -1)


def read_angles(
    move: Movement, columns: npt.NDArray[np.int64], rotation: Rotation, head_size: int, span: range
) -> tuple[Array, Array]:
    """Cosines and sines [positions, size / 2] of some positions, scaled as the model scales them."""
    head = np.zeros(head_size, np.float32)
    head[rotation.firsts] = 1
    out = move.at(heads_like(head, move, columns, len(span)), span.start)
    return out[:, rotation.firsts], out[:, rotation.seconds]


def make_tables(
    move: Movement, columns: npt.NDArray[np.int64], rotation: Rotation, head_size: int, context_length: int
) -> tuple[Array, Array] | None:
    """Cosines and sines [context_length, size / 2], or None where the angles depend on more than the position."""
    step = max(FEW, LARGEST_RUN // move.width)
    spans = [range(start, min(start + step, context_length)) for start in range(0, context_length, step)]
    parts = [read_angles(move, columns, rotation, head_size, span) for span in spans]
    cos, sin = (np.concatenate(part) for part in zip(*parts, strict=True))
    lengths = sorted({1 << power for power in range(context_length.bit_length())} | {context_length})
    for length in lengths:  # as the last of that many tokens
        alone = read_angles(move, columns, rotation, head_size, range(length - 1, length))
        if not (close(alone[0][0], cos[length - 1]) and close(alone[1][0], sin[length - 1])):
            return None
    return cos, sin


def agrees(move: Movement, columns: npt.NDArray[np.int64], rotation: Rotation, head_size: int, tables: tuple[Array, Array]) -> bool:
    """Return whether the stretch computes what the tables say, at both ends of the context and in rows of unequal length."""
    cos, sin = tables
    few = min(FEW, len(cos))
    x = random_rows(few, move.width)
    for start in (0, len(cos) - few):
        want = rotate(x[:, columns], cos[start : start + few], sin[start : start + few], rotation, head_size)
        if not close(move.at(x, start), want):
            return False
    counts = np.array([few // 2 + 1, few])  # tokens per row, the new one included; padding comes last, as the runtime has it
    mask = (np.arange(few)[None] < counts[:, None]).astype(np.int64)
    want = rotate(x[:2, columns], cos[counts - 1], sin[counts - 1], rotation, head_size)
    return close(move(x[:2, None], mask)[:, 0], want)


def independent_of_length(graph: ir.Graph, angles: Sequence[ir.Value], context_length: int) -> bool:
    """Return whether the angles of the first positions are the same when the whole context follows."""
    piece = Piece(graph, asked_by(graph), angles)
    few = min(FEW, context_length)
    runs = []
    for new in (few, context_length):
        runs.append(piece.run(plain_text(1, new)))
    for short, full in zip(*runs, strict=True):
        cut = full[tuple(slice(size) for size in short.shape)]
        if cut.shape != short.shape or not close(cut, short):
            return False
    return True
