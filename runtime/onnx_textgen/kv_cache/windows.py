"""Buffers of layers with a sliding window: the last tokens of each row.

A buffer has memory for `Window.capacity` tokens. When it is full, the last `Window.kept` of them move to its front, and the earlier
ones are forgotten; so a row can be rewound at least `REACH` tokens. A longer answer would forget the end of its prompt, from which
the next prompt of a chat continues: `Window.copied` tokens there are copied before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..backends.onnxruntime_session import OrtValue
from ..backends.signature import CacheTensor
from .snapshot import ArrayMapping, Arrays, copied


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """Copies of the tokens from `first` up to `last`."""

    first: int
    last: int
    arrays: Arrays


class Windows:
    """The windows of `rows` rows, in buffers of a `SharedCache`; if the graph has none, the methods do nothing."""

    def __init__(self, tensors: Sequence[CacheTensor], rows: int) -> None:
        self.tensors = tuple(tensor for tensor in tensors if tensor.window is not None)
        self.window = self.tensors[0].window if self.tensors else None
        self.starts = [0] * rows
        """Per row, the token in the first column of the buffers."""
        self.firsts = [0] * rows
        """Per row, the first token that is held; later than the start, if the row was rewound across a move."""
        self.marks = [0] * rows
        """Per row, the length that it should be able to return to."""
        self.copies: dict[int, Copy] = {}
        """Per row, the window at its mark, once the buffers have forgotten it."""

    def room(self, length: int) -> int | None:
        """The most tokens of a run over `length` tokens; None: any number."""
        return None if self.window is None else self.window.run_end(length) - length

    def columns(self, row: int, length: int) -> int:
        """Columns that a row of `length` tokens uses."""
        return length - self.starts[row]

    def mark(self, row: int, length: int) -> None:
        """From now on, let a row be able to return to `length` tokens."""
        self.marks[row] = length
        if row in self.copies and self.copies[row].last != length:
            del self.copies[row]

    def nearest(self, row: int, length: int, held: int) -> int:
        """The longest length that a row of `held` tokens can return to, at most `length`."""
        if self.window is None or length >= held or self.window.suffices(self.firsts[row], length):
            return length
        if (copy := self.copies.get(row)) is not None:
            length = min(length, copy.last)
            return length if self.window.suffices(copy.first, length) else 0
        return 0

    def settle(self, row: int, length: int, buffers: dict[str, OrtValue]) -> None:
        """Before a run, let the buffers of a row begin where its length says; raises nothing once it moves tokens."""
        if self.window is None or (start := self.window.start(length)) == self.starts[row]:
            return
        if start > self.starts[row]:
            self.copy_mark(row, start, buffers)
        old, new = (slice(max(start, self.starts[row]) - begin, length - begin) for begin in (self.starts[row], start))
        for tensor in self.tensors:
            values = buffers[tensor.past].numpy()
            values[tensor.index(row, new)] = values[tensor.index(row, old)]
            values[tensor.index(row, slice(new.start))] = 0  # masked, but not a number would spread
        self.starts[row], self.firsts[row] = start, max(start, self.firsts[row])

    def copy_mark(self, row: int, start: int, buffers: dict[str, OrtValue]) -> None:
        """Copy the window at a row's mark, if tokens of it lie before `start`."""
        assert self.window is not None, "the caller has checked"
        mark = self.marks[row]
        first = max(self.firsts[row], mark - self.window.copied)
        if first < start and row not in self.copies and self.window.suffices(first, mark):
            self.copies[row] = Copy(first, mark, self.cut(row, first, mark, buffers))

    def cut(self, row: int, first: int, last: int, buffers: dict[str, OrtValue]) -> Arrays:
        """Copies of a row's tokens from `first` up to `last`."""
        part = slice(row, row + 1), slice(first - self.starts[row], last - self.starts[row])
        return {tensor.past: copied(buffers[tensor.past].numpy()[tensor.index(*part)]) for tensor in self.tensors}

    def take(self, row: int, length: int, buffers: dict[str, OrtValue]) -> Arrays:
        """Copies of the last tokens up to `length`, as many as it takes to continue from there; `nearest` must return `length`."""
        if self.window is None:
            return {}
        if not length or self.window.suffices(self.firsts[row], length):
            first = max(self.firsts[row], self.window.start(length)) if length else self.starts[row]
            return self.cut(row, first, length or first, buffers)
        copy = self.copies[row]
        part = slice(None), slice(length - copy.first)
        return {tensor.past: copied(copy.arrays[tensor.past][tensor.index(*part)]) for tensor in self.tensors}

    def put(self, row: int, arrays: ArrayMapping, length: int, buffers: dict[str, OrtValue]) -> None:
        """Make a row hold arrays [1, ...] that end with token `length`."""
        if self.window is None:
            return
        self.forget(row)
        start = self.window.start(length)
        for tensor in self.tensors:
            array, values = arrays[tensor.past], buffers[tensor.past].numpy()
            first = length - array.shape[tensor.length_axis or 0]
            begin = max(first, start)
            values[tensor.index(slice(row, row + 1), slice(begin - start, length - start))] = array[
                tensor.index(slice(None), slice(begin - first, None))
            ]
            values[tensor.index(row, slice(begin - start))] = 0
            self.firsts[row] = begin
        self.starts[row], self.marks[row] = start, length

    def rewind(self, row: int, length: int, held: int, buffers: dict[str, OrtValue]) -> None:
        """Return a row of `held` tokens to a length that `nearest` returns."""
        if self.window is None or length == held:
            return
        if not length:
            self.forget(row)
        elif not self.window.suffices(self.firsts[row], length):
            self.put(row, self.take(row, length, buffers), length, buffers)
        else:
            self.mark(row, min(self.marks[row], length))

    def forget(self, row: int) -> None:
        """Make a row empty."""
        self.starts[row] = self.firsts[row] = self.marks[row] = 0
        self.copies.pop(row, None)

    def copy_row(self, source: int, target: int) -> None:
        """Note that the buffers of a row became a copy of another row's."""
        self.forget(target)
        for numbers in (self.starts, self.firsts, self.marks):
            numbers[target] = numbers[source]
        if source in self.copies:
            self.copies[target] = self.copies[source]

    def shortest(self, arrays: Arrays, length: int) -> int:
        """The fewest tokens, but 0, that a text of `length` tokens can be cut to, if this is what was taken of it."""
        if self.window is None or not length:
            return 0
        tensor = self.tensors[0]
        first: int = length - arrays[tensor.past].shape[tensor.length_axis or 0]
        return first and first + self.window.size

    def inputs(self, lengths: Sequence[int], rows: range, ends: Sequence[int], new: int) -> dict[str, npt.NDArray[np.int64]]:
        """The graph's inputs for a run of `new` columns, after which rows of `lengths` tokens have `ends`, by their roles."""
        last = np.array(ends) - self.starts[rows.start : rows.stop] - 1
        first = np.array(lengths[rows.start : rows.stop])
        return {
            "window_lengths": last,
            "window_total": np.array(max(int(last.max()) + 1, new)),
            "window_positions": first[:, None] + np.arange(new),
        }
