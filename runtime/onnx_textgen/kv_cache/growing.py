"""The cache of graphs that return keys and values as new tensors each run, longer by the new tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backends.onnxruntime_run import BoundRun
from ..backends.onnxruntime_session import IOBinding, OnnxRuntimeSession, OrtValue
from ..backends.signature import CacheTensor
from .protocol import EVERY, Tensors
from .recurrent_states import States
from .snapshot import ArrayMapping, Arrays, copied
from .windows import Windows


class GrowingCache:
    """Tensors that grow by the tokens of each run.

    A row that is fed alone has separate tensors [1, kv_heads, tokens, head_size] (sizes differ by tensor). A batched step joins the
    first rows in tensors [rows, kv_heads, width, head_size], aligned on the right. Then `column_mask` [rows, width] is 1 where a
    column is a token of the row, and 0 where the row was padded or idle.
    """

    def __init__(self, session: OnnxRuntimeSession, tensors: tuple[CacheTensor, ...], *, rows: int) -> None:
        self.session, self.tensors, self.rows = session, tensors, rows
        self.by_token = tuple(tensor for tensor in tensors if tensor.length_axis is not None)
        self.lengths = [0] * rows
        self.states = States(session.device, tensors, rows)
        self.windows = Windows((), rows)
        self.per_row: list[Tensors] = [
            {one.past: self.to_device(np.zeros(one.sized(1, 0), one.dtype)) for one in self.by_token} for _ in range(rows)
        ]
        self.batched: Tensors = {}
        """Tensors that hold the first rows together; empty while each row has its own."""
        self.column_mask = np.zeros((0, 0), dtype=np.int64)
        self.running: IOBinding | None = None

    def to_device(self, array: npt.NDArray[Any]) -> OrtValue:
        """An array as a tensor on the session's device; on the CPU they share memory, so `array` must not be a view of a tensor."""
        device = self.session.device
        return OrtValue.ortvalue_from_numpy(array, device.kind, device.index)

    @property
    def capacity(self) -> int:
        """See `Cache.capacity`: the tokens of the longest row."""
        return max(self.lengths)

    def reserve(self, row: int, tokens: int) -> None:
        """See `Cache.reserve`: does nothing, as every run returns new tensors."""

    def join(self, rows: int) -> None:
        """Join the first rows in one batch, aligned on the right."""
        if self.batched and len(self.column_mask) == rows:
            return
        self.split()
        width = max(self.lengths[:rows])
        starts = [width - length for length in self.lengths[:rows]]
        batched = {}
        for tensor in self.by_token:
            array = np.zeros(tensor.sized(rows, width), tensor.dtype)
            for row, start in enumerate(starts):
                array[tensor.index(row, slice(start, None))] = self.per_row[row][tensor.past].numpy()[tensor.index(0, EVERY)]
            batched[tensor.past] = self.to_device(array)
        self.column_mask = (np.arange(width)[None] >= np.array(starts)[:, None]).astype(np.int64)
        self.batched, self.per_row[:rows] = batched, [{} for _ in range(rows)]

    def split(self) -> None:
        """Split the batch into rows again, without the padding and the columns of idle rows."""
        if not self.batched:
            return
        arrays = [(tensor, self.batched[tensor.past].numpy()) for tensor in self.by_token]
        columns = [np.flatnonzero(held) for held in self.column_mask]
        self.per_row[: len(columns)] = [
            {one.past: self.to_device(np.ascontiguousarray(array[one.index(slice(row, row + 1), held)])) for one, array in arrays}
            for row, held in enumerate(columns)
        ]
        self.batched = {}

    def begin(self, rows: range, new: int, active: Sequence[int] = ()) -> BoundRun:
        """See `Cache.begin`; if an active row idled before, its gap is removed first, as sliding windows count columns."""
        together = len(rows) > 1
        idled = any(on and not held[-1:].any() for held, on in zip(self.column_mask, active, strict=False))
        if not together or (self.batched and idled):
            self.split()
        if together:
            self.join(len(rows))
        side = self.states.begin(rows, active)
        binding, device = self.session.ort.io_binding(), self.session.device
        values = self.batched if together else self.per_row[rows.start]
        for tensor in self.by_token:
            binding.bind_ortvalue_input(tensor.past, values[tensor.past])
            binding.bind_output(tensor.present, device.kind, device.index)
        self.states.bind(binding, rows, side)
        self.running = binding
        return BoundRun(self.session, binding)

    def end(self, rows: range, advanced: Sequence[int]) -> None:
        """See `Cache.end`."""
        assert self.running is not None, "end follows begin"
        outputs = self.running.get_outputs()  # in the order of binding: states and logits follow
        presents = {tensor.past: value for tensor, value in zip(self.by_token, outputs, strict=False)}
        self.running = None
        self.states.end(rows)
        if len(rows) > 1:
            self.batched, self.column_mask = presents, np.hstack([self.column_mask, np.array(advanced, dtype=np.int64)[:, None]])
        else:
            self.per_row[rows.start] = presents
        for row, count in zip(rows, advanced, strict=True):
            self.lengths[row] += count

    def mask(self, rows: range, new: int) -> npt.NDArray[np.int64]:
        """See `Cache.mask`."""
        past = self.column_mask if len(rows) > 1 else np.ones((1, self.lengths[rows.start]), dtype=np.int64)
        return np.pad(past, ((0, 0), (0, new)), constant_values=1)

    def rewind(self, row: int, length: int) -> None:
        """See `Cache.rewind`."""
        self.split()
        self.per_row[row] = {
            tensor.past: self.to_device(self.per_row[row][tensor.past].numpy()[tensor.index(EVERY, slice(length))].copy())
            for tensor in self.by_token
        }
        self.states.rewind(row, length)
        self.lengths[row] = length

    def copy_row(self, source: int, target: int) -> None:
        """See `Cache.copy_row`; the rows share tensors, as a run never writes into its past."""
        self.split()
        self.per_row[target] = dict(self.per_row[source])
        self.states.copy_row(source, target)
        self.lengths[target] = self.lengths[source]

    def take(self, row: int, length: int) -> Arrays:
        """See `Cache.take`."""
        self.split()
        return {one.past: copied(self.per_row[row][one.past].numpy()[one.index(EVERY, slice(length))]) for one in self.by_token}

    def put(self, row: int, arrays: ArrayMapping, length: int) -> None:
        """See `Cache.put`."""
        self.split()
        part = {one.past: copied(arrays[one.past][one.index(EVERY, slice(length))]) for one in self.by_token}
        self.per_row[row] = {name: self.to_device(array) for name, array in part.items()}
        self.lengths[row] = length
