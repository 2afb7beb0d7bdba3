"""States: what a recurrent or convolution layer carries from run to run, of one size however long the text.

Each tensor lies in two buffers [rows, ...]: a run reads the one and writes the other, since a graph may still read a state
after it has written the next. A row that idles in a common step has its state put aside, as the graph writes rubbish into its
place. A state cannot be taken back; a row returns to its beginning, or to the one length it was asked to keep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..backends.onnxruntime_session import IOBinding, OrtValue
from ..backends.protocol import Graph
from ..backends.signature import CacheTensor
from .snapshot import Arrays


class States:
    """The states of `rows` sequences; all its methods do nothing for a graph without any."""

    def __init__(self, session: Graph, tensors: Sequence[CacheTensor], rows: int) -> None:
        self.tensors = tuple(tensor for tensor in tensors if tensor.kind == "state")
        self.rows, self.device = rows, session.device
        self.buffers = [{tensor.past: self.empty(tensor) for tensor in self.tensors} for _ in range(2)]
        self.sides = [0] * rows
        """Which of the two buffers holds a row's state."""
        self.aside: dict[int, Arrays] = {}
        """States of rows that have none in the buffers for now."""
        self.kept: dict[int, tuple[int, Arrays]] = {}
        """The length that a row can return to, and its state there."""

    def empty(self, tensor: CacheTensor) -> OrtValue:
        """A buffer of zeros where the session runs."""
        return OrtValue.ortvalue_from_numpy(np.zeros(tensor.sized(self.rows, 0), tensor.dtype), self.device.kind, self.device.index)

    def begin(self, rows: range, active: Sequence[int] = ()) -> int:
        """Have the states of the rows that run in one buffer, and say in which; the others' are safe from the run."""
        if not self.tensors:
            return 0
        going = [row for index, row in enumerate(rows) if len(rows) == 1 or not active or active[index]]
        side = self.sides[going[0]]
        for index in set(rows) - set(going) - self.aside.keys():
            self.aside[index] = self.read(index)
        moving = {index: self.read(index) for index in going if index in self.aside or self.sides[index] != side}
        if moving:
            self.write(side, moving)
            for index in moving:
                self.sides[index] = side
                self.aside.pop(index, None)
        return side

    def bind(self, binding: IOBinding, rows: range, side: int) -> None:
        """Bind some rows of one buffer as the past, of the other as the present."""
        for tensor in self.tensors:
            shape = tensor.sized(len(rows), 0)
            offset = rows.start * math.prod(shape[1:]) * tensor.dtype.itemsize
            device, index, element = self.device.kind, self.device.index, tensor.dtype.type
            past, present = (self.buffers[which][tensor.past].data_ptr() + offset for which in (side, 1 - side))
            binding.bind_input(tensor.past, device, index, element, list(shape), past)
            binding.bind_output(tensor.present, device, index, element, list(shape), present)

    def end(self, rows: range) -> None:
        """Take what the run left for the states of the rows that ran; those that idled lie aside."""
        if self.tensors:
            for index in rows:
                self.sides[index] ^= 1

    def read(self, row: int) -> Arrays:
        """A copy of a row's state, wherever it is."""
        if row in self.aside:
            return self.aside[row]
        return {name: np.array(buffer.numpy()[row]) for name, buffer in self.buffers[self.sides[row]].items()}

    def write(self, side: int, rows: dict[int, Arrays]) -> None:
        """Put the states of some rows into one of the buffers."""
        for name, buffer in self.buffers[side].items():
            values = buffer.numpy()
            for row, arrays in rows.items():
                values[row] = arrays[name]
            buffer.update_inplace(values)

    def keep(self, row: int, length: int) -> None:
        """Remember the state of a row that holds `length` tokens."""
        if self.tensors:
            self.kept[row] = (length, self.read(row))

    def nearest(self, row: int, length: int, held: int) -> int:
        """The longest text of at most `length` of the `held` tokens that the row can return to."""
        if not self.tensors or length >= held:
            return length
        kept = self.kept[row][0] if row in self.kept else 0
        return kept if kept <= length else 0

    def rewind(self, row: int, length: int) -> None:
        """Return to the beginning or to what was kept; `nearest` has said that this can be done."""
        if not self.tensors:
            return
        if row in self.kept and self.kept[row][0] == length:
            self.aside[row] = self.kept[row][1]
        else:
            self.kept.pop(row, None)
            self.aside[row] = {tensor.past: np.zeros(tensor.sized(1, 0)[1:], tensor.dtype) for tensor in self.tensors}

    def take(self, row: int, length: int) -> dict[int, Arrays]:
        """Copies of what a row that holds `length` tokens can go on from, by the number of tokens."""
        if not self.tensors:
            return {}
        known = {length: self.read(row)}
        return known | dict([self.kept[row]]) if row in self.kept else known

    def put(self, row: int, arrays: Arrays) -> None:
        """Give a row the state that `take` gave, here or elsewhere."""
        if self.tensors:
            self.kept.pop(row, None)
            self.aside[row] = arrays

    def copy_row(self, source: int, target: int) -> None:
        """Make a row's state, and the one it can return to, those of another row."""
        if self.tensors:
            self.aside[target] = self.read(source)
            self.kept.pop(target, None)
            if source in self.kept:
                self.kept[target] = self.kept[source]
