"""States: what a recurrent or convolution layer carries from run to run; their size does not depend on the length of the text.

Each tensor has two buffers [rows, ...]: a run reads one and writes the other, since a graph may still read a state after it has
written the next. If a row idles in a batched step, its state is saved outside the buffers, as the graph overwrites its place. A
state cannot be rolled back: a row can return only to its beginning, or to the lengths that `keep` recorded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..backends.onnxruntime_session import IOBinding, OrtValue
from ..backends.protocol import Device
from ..backends.signature import CacheTensor
from .snapshot import Arrays

MOST_KEPT = 6
"""The most lengths that a row can return to."""


class States:
    """The states of `rows` rows; if the graph has none, the methods do nothing."""

    def __init__(self, device: Device, tensors: Sequence[CacheTensor], rows: int) -> None:
        self.tensors = tuple(tensor for tensor in tensors if tensor.kind == "state")
        self.rows, self.device = rows, device
        self.buffers = [{tensor.past: self.empty(tensor) for tensor in self.tensors} for _ in range(2)]
        self.sides = [0] * rows
        """Per row, the index of the buffer that holds its state."""
        self.saved: dict[int, Arrays] = {}
        """States of rows that are not in the buffers now."""
        self.kept = [dict[int, Arrays]() for _ in range(rows)]
        """Per row, the lengths that it can return to, and its states there."""

    def empty(self, tensor: CacheTensor) -> OrtValue:
        """A buffer of zeros on the device."""
        return OrtValue.ortvalue_from_numpy(np.zeros(tensor.sized(self.rows, 0), tensor.dtype), self.device.kind, self.device.index)

    def begin(self, rows: range, active: Sequence[int] = ()) -> int:
        """Bring the states of active rows into one buffer, and return its index; states of idle rows are saved from the run."""
        if not self.tensors:
            return 0
        going = [row for index, row in enumerate(rows) if len(rows) == 1 or not active or active[index]]
        side = self.sides[going[0]]
        for index in set(rows) - set(going) - self.saved.keys():
            self.saved[index] = self.read(index)
        moving = {index: self.read(index) for index in going if index in self.saved or self.sides[index] != side}
        if moving:
            self.write(side, moving)
            for index in moving:
                self.sides[index] = side
                self.saved.pop(index, None)
        return side

    def bind(self, binding: IOBinding, rows: range, side: int) -> None:
        """Bind these rows of buffer `side` as the past, and of the other buffer as the present."""
        for tensor in self.tensors:
            shape = tensor.sized(len(rows), 0)
            offset = rows.start * math.prod(shape[1:]) * tensor.dtype.itemsize
            device, index, element = self.device.kind, self.device.index, tensor.dtype.type
            past, present = (self.buffers[which][tensor.past].data_ptr() + offset for which in (side, 1 - side))
            binding.bind_input(tensor.past, device, index, element, list(shape), past)
            binding.bind_output(tensor.present, device, index, element, list(shape), present)

    def end(self, rows: range) -> None:
        """Commit the run: the states of active rows are now in the other buffer; those of idle rows stay saved."""
        if self.tensors:
            for index in rows:
                self.sides[index] ^= 1

    def read(self, row: int) -> Arrays:
        """A row's state: the saved one, or a copy from its buffer."""
        if row in self.saved:
            return self.saved[row]
        return {name: np.array(buffer.numpy()[row]) for name, buffer in self.buffers[self.sides[row]].items()}

    def write(self, side: int, rows: dict[int, Arrays]) -> None:
        """Write the states of some rows into one of the buffers."""
        for name, buffer in self.buffers[side].items():
            values = buffer.numpy()
            for row, arrays in rows.items():
                values[row] = arrays[name]
            buffer.update_inplace(values)

    def keep(self, row: int, length: int) -> None:
        """Record the state of a row that holds `length` tokens, so that it can return there.

        If these become too many, the first remains, since texts share their beginnings, and the last ones, where a text continues.
        """
        if self.tensors:
            kept = self.kept[row]
            kept[length] = self.read(row)
            while len(kept) > MOST_KEPT:
                del kept[sorted(kept)[1]]

    def nearest(self, row: int, length: int, held: int) -> int:
        """The longest length that a row of `held` tokens can return to, at most `length`."""
        if not self.tensors or length >= held:
            return length
        return max((kept for kept in self.kept[row] if kept <= length), default=0)

    def rewind(self, row: int, length: int) -> None:
        """Return a row to its beginning or to a kept length; `length` must be one that `nearest` returns."""
        self.put(row, self.kept[row], length)

    def take(self, row: int, length: int) -> dict[int, Arrays]:
        """Copies of the states that a row of `length` tokens can continue from, by their number of tokens."""
        if not self.tensors:
            return {}
        return {length: self.read(row), **self.kept[row]}

    def put(self, row: int, states: Mapping[int, Arrays], length: int) -> None:
        """Give a row its state after `length` tokens; `states`, from `take` of this or another cache, has it unless that is 0."""
        if self.tensors:
            self.kept[row] = {known: arrays for known, arrays in states.items() if known <= length}
            begin = {tensor.past: np.zeros(tensor.sized(1, 0)[1:], tensor.dtype) for tensor in self.tensors}
            self.saved[row] = self.kept[row].get(length, begin)

    def copy_row(self, source: int, target: int) -> None:
        """Copy a row's state, and those that it can return to, to another row."""
        if self.tensors:
            self.saved[target], self.kept[target] = self.read(source), dict(self.kept[source])
