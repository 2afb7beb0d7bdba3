"""The cache on a plug-in's device: each row has separate tensors there, and is fed alone.

Attention that works in place has one buffer per tensor, bound as past and as present, which grows by half when it is full. Other
attention returns keys and values as new tensors, which are the past of the next run. Nothing is copied to the CPU, except where a
buffer grows or a row is copied. States lie on the CPU: their size does not depend on the length of the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..backends.onnxruntime_run import BoundRun
from ..backends.onnxruntime_session import OnnxRuntimeSession
from ..backends.plugins.memory import DeviceMemory
from ..backends.protocol import CPU, mask_of
from ..backends.signature import CacheTensor
from .protocol import EVERY, Tensors
from .recurrent_states import States
from .snapshot import ArrayMapping, Arrays
from .windows import Windows


class OnDeviceCache:
    """A tensor [1, kv_heads, tokens, head_size] per row and past input (sizes differ by input), in the memory of a device."""

    def __init__(
        self,
        session: OnnxRuntimeSession,
        memory: DeviceMemory,
        tensors: tuple[CacheTensor, ...],
        *,
        rows: int,
        capacity: int,
        context_length: int,
    ) -> None:
        self.session, self.memory, self.tensors, self.rows = session, memory, tensors, rows
        self.initial_capacity, self.context_length = capacity, context_length
        self.by_token = tuple(tensor for tensor in tensors if tensor.length_axis is not None)
        self.in_place = any(tensor.kind == "shared" for tensor in tensors)
        self.lengths = [0] * rows
        self.capacities = [0] * rows
        """Per row, the tokens that its tensors have memory for; without attention in place, the tokens that they hold."""
        self.per_row: list[Tensors] = [{} for _ in range(rows)]
        self.presents: Tensors = {}
        """The tensors that the run which `begin` prepared writes: those of the row, if attention works in place."""
        self.runs: dict[tuple[int, int], BoundRun] = {}
        """By row and by the side that holds its states; reused if attention works in place, until the row's buffers move."""
        self.states = States(CPU, tensors, rows)
        self.windows = Windows((), rows)

    @property
    def capacity(self) -> int:
        """See `Cache.capacity`."""
        return max(self.capacities)

    def reserve(self, row: int, tokens: int) -> None:
        """See `Cache.reserve`."""
        if self.in_place and max(tokens, 1) > self.capacities[row]:
            room = max(tokens, min(max(self.capacities[row] * 3 // 2, tokens + self.initial_capacity), self.context_length))
            self.fill(row, self.take(row, self.lengths[row]), room)

    def fill(self, row: int, arrays: Arrays, room: int) -> None:
        """Give a row new tensors for `room` tokens that begin with these arrays."""
        filled = {}
        for tensor in self.by_token:
            held = arrays.get(tensor.past)
            array = np.zeros(tensor.sized(1, room), tensor.dtype)
            if held is not None:
                array[tensor.index(EVERY, slice(held.shape[tensor.length_axis or 0]))] = held
            filled[tensor.past] = self.memory.upload(array)
        self.per_row[row], self.capacities[row] = filled, room
        self.runs = {key: run for key, run in self.runs.items() if key[0] != row}

    def begin(self, rows: range, new: int, active: Sequence[int] = ()) -> BoundRun:
        """See `Cache.begin`; the rows are a single one."""
        (row,) = rows
        length = self.lengths[row] + new
        self.reserve(row, length)
        if not self.per_row[row]:
            self.fill(row, {}, 0)
        past, side = self.per_row[row], self.states.begin(rows, active)
        self.presents = past
        if not self.in_place:
            self.presents = {one.past: self.memory.allocate(one.sized(1, length), one.dtype) for one in self.by_token}
        elif (row, side) in self.runs:
            return self.runs[row, side].reset()
        binding = self.session.ort.io_binding()
        for tensor in self.by_token:
            binding.bind_ortvalue_input(tensor.past, past[tensor.past])
            binding.bind_ortvalue_output(tensor.present, self.presents[tensor.past])
        self.states.bind(binding, rows, side)
        self.runs[row, side] = BoundRun(self.session, binding)
        return self.runs[row, side]

    def end(self, rows: range, advanced: Sequence[int]) -> None:
        """See `Cache.end`."""
        (row,), (count,) = rows, advanced
        self.states.end(rows)
        self.per_row[row], self.presents = self.presents, {}
        self.lengths[row] += count
        if not self.in_place:
            self.capacities[row] = self.lengths[row]

    def mask(self, rows: range, new: int) -> npt.NDArray[np.int64]:
        """See `Cache.mask`."""
        return mask_of([self.lengths[row] + new for row in rows])

    def rewind(self, row: int, length: int) -> None:
        """See `Cache.rewind`; what lies beyond the length in a buffer is never read."""
        if not self.in_place and length < self.lengths[row]:
            self.fill(row, self.take(row, length), length)
        self.states.rewind(row, length)
        self.lengths[row] = length

    def copy_row(self, source: int, target: int) -> None:
        """See `Cache.copy_row`."""
        self.put(target, self.take(source, self.lengths[source]), self.lengths[source])
        self.states.copy_row(source, target)

    def take(self, row: int, length: int) -> Arrays:
        """See `Cache.take`."""
        held = self.per_row[row]
        if not held:
            return {tensor.past: np.zeros(tensor.sized(1, 0), tensor.dtype) for tensor in self.by_token}
        whole = [(tensor, self.memory.download(held[tensor.past], tensor.dtype)) for tensor in self.by_token]
        return {tensor.past: np.ascontiguousarray(array[tensor.index(EVERY, slice(length))]) for tensor, array in whole}

    def put(self, row: int, arrays: ArrayMapping, length: int) -> None:
        """See `Cache.put`."""
        parts = {one.past: arrays[one.past][one.index(EVERY, slice(length))] for one in self.by_token}
        self.fill(row, parts, max(length, self.initial_capacity) if self.in_place else length)
        self.lengths[row] = length
