"""Buffers of layers with a sliding window: the last tokens of each row.

A buffer has memory for `Window.capacity` tokens. When it is full, the last `Window.kept` of them move to its front, and the earlier
ones are forgotten; so a row can be rewound at least `REACH` tokens. To return further back, to the end of a prompt or of a message
in it, a row marks these lengths: `Window.copied` tokens there are copied before they are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ..backends.onnxruntime_session import OrtValue
from ..backends.signature import CacheTensor
from .memory_plan import most_copies
from .snapshot import ArrayMapping, Arrays, WindowCopy, copied


class Windows:
    """The windows of `rows` rows, in buffers of a `SharedCache`; if the graph has none, the methods do nothing."""

    def __init__(self, tensors: Sequence[CacheTensor], rows: int) -> None:
        self.tensors = tuple(tensor for tensor in tensors if tensor.window is not None)
        self.window = self.tensors[0].window if self.tensors else None
        self.starts = [0] * rows
        """Per row, the token in the first column of the buffers."""
        self.firsts = [0] * rows
        """Per row, the first token that is held; later than the start, if the row was rewound across a move."""
        self.marks = [list[int]() for _ in range(rows)]
        """Per row, the lengths that it should be able to return to, in ascending order."""
        self.copies = [dict[int, WindowCopy]() for _ in range(rows)]
        """Per row, the windows at its marks that the buffers have forgotten."""
        self.most_marks = most_copies(self.tensors)

    def room(self, length: int) -> int | None:
        """The most tokens of a run over `length` tokens; None: any number."""
        return None if self.window is None else self.window.run_end(length) - length

    def columns(self, row: int, length: int) -> int:
        """Columns that a row of `length` tokens uses."""
        return length - self.starts[row]

    def mark(self, row: int, lengths: Iterable[int]) -> None:
        """From now on, let a row be able to return to these lengths too, which it may not have yet.

        The copy at a mark serves the `REACH` tokens before it, so marks there are left out. If there are still too many, the first
        remains, since texts share their beginnings, and the last ones, where a text continues.
        """
        if self.window is None:
            return
        reach, copies, marks = self.window.copied - self.window.size, self.copies[row], list[int]()
        for length in sorted({*self.marks[row], *lengths}, reverse=True):
            if not marks or length in copies or marks[0] - length > reach:
                marks.insert(0, length)
        while len(marks) > self.most_marks:
            copies.pop(marks.pop(min(1, len(marks) - 2)), None)
        self.marks[row] = marks

    def nearest(self, row: int, length: int, held: int) -> int:
        """The longest length that a row of `held` tokens can return to, at most `length`."""
        if self.window is None or length >= held or self.window.suffices(self.firsts[row], length):
            return length
        return max((min(length, last) for last, each in self.copies[row].items() if each.serves(min(length, last))), default=0)

    def settle(self, row: int, length: int, buffers: dict[str, OrtValue]) -> None:
        """Before a run, let the buffers of a row begin where its length says; raises nothing once it moves tokens."""
        if self.window is None or (start := self.window.start(length)) == self.starts[row]:
            return
        if start > self.starts[row]:
            self.copy_marks(row, start, length, buffers)
        old, new = (slice(max(start, self.starts[row]) - begin, length - begin) for begin in (self.starts[row], start))
        for tensor in self.tensors:
            values = buffers[tensor.past].numpy()
            values[tensor.index(row, new)] = values[tensor.index(row, old)]
            values[tensor.index(row, slice(new.start))] = 0  # masked, but not a number would spread
        self.starts[row], self.firsts[row] = start, max(start, self.firsts[row])

    def copy_marks(self, row: int, start: int, length: int, buffers: dict[str, OrtValue]) -> None:
        """Copy the windows at a row's marks of which tokens lie before `start`; the row has `length` tokens."""
        assert self.window is not None, "the caller has checked"
        for mark in self.marks[row]:
            first = max(self.firsts[row], mark - self.window.copied)
            if first < start and mark <= length and mark not in self.copies[row] and self.window.suffices(first, mark):
                arrays = self.cut(row, first, mark, buffers)
                self.copies[row][mark] = WindowCopy(mark, self.shortest(arrays, mark), arrays)

    def cut(self, row: int, first: int, last: int, buffers: dict[str, OrtValue]) -> Arrays:
        """Copies of a row's tokens from `first` up to `last`."""
        part = slice(row, row + 1), slice(first - self.starts[row], last - self.starts[row])
        return {tensor.past: copied(buffers[tensor.past].numpy()[tensor.index(*part)]) for tensor in self.tensors}

    def take(self, row: int, length: int, buffers: dict[str, OrtValue]) -> Arrays:
        """The last tokens up to `length`, at least as many as it takes to continue from there; `nearest` must return `length`."""
        if self.window is None:
            return {}
        if not length or self.window.suffices(self.firsts[row], length):
            first = self.firsts[row] if length else self.starts[row]
            return self.cut(row, first, length or first, buffers)
        copy = next(each for each in self.copies[row].values() if each.serves(length))
        return copy.cut(length, self.tensors)

    def take_copies(self, row: int, length: int) -> tuple[WindowCopy, ...]:
        """The windows at marks before `length` that `take` does not have."""
        return tuple(each for mark, each in self.copies[row].items() if mark < length)

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
        self.starts[row] = start
        self.mark(row, [length])

    def put_copies(self, row: int, copies: Iterable[WindowCopy]) -> None:
        """Let a row return to copies too that `take_copies` of this or another row returned."""
        known = {each.last: each for each in copies}
        self.copies[row] |= known
        self.mark(row, known)

    def rewind(self, row: int, length: int, held: int, buffers: dict[str, OrtValue]) -> None:
        """Return a row of `held` tokens to a length that `nearest` returns."""
        if self.window is None or length == held:
            return
        if not length:
            self.forget(row)
            return
        marks = [mark for mark in self.marks[row] if mark <= length]
        marks += [length] if len(marks) < len(self.marks[row]) and length not in marks else []
        copies = {last: each for last, each in self.copies[row].items() if last <= length}
        if not self.window.suffices(self.firsts[row], length):
            self.put(row, self.take(row, length, buffers), length, buffers)
        self.marks[row], self.copies[row] = marks, copies

    def forget(self, row: int) -> None:
        """Make a row empty."""
        self.starts[row] = self.firsts[row] = 0
        self.marks[row], self.copies[row] = [], {}

    def copy_row(self, source: int, target: int) -> None:
        """Note that the buffers of a row became a copy of another row's."""
        self.starts[target], self.firsts[target] = self.starts[source], self.firsts[source]
        self.marks[target], self.copies[target] = list(self.marks[source]), dict(self.copies[source])

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
