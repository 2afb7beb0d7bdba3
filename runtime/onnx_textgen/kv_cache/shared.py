"""The cache of graphs whose attention updates it in place: one buffer per tensor, bound as past and as present.

When the capacity is reached, it grows by half. What lies beyond a row's length has no effect, if it is a number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backends.onnxruntime_run import BoundRun
from ..backends.onnxruntime_session import IOBinding, OnnxRuntimeSession, OrtValue
from ..backends.protocol import mask_of
from ..backends.signature import CacheTensor
from .protocol import EVERY, Tensors
from .recurrent_states import States
from .snapshot import ArrayMapping, Arrays, copied
from .windows import Windows

ALIGNMENT = 64
"""Bytes of the processor's cache line."""
MASK_COLUMNS = 64
"""Columns of a mask for a single token are a multiple of this, so that one binding serves as many steps."""


def allocate_contiguous(kinds: Sequence[tuple[tuple[int, ...], np.dtype[Any]]], *, zeros: bool = False) -> list[npt.NDArray[Any]]:
    """Allocate arrays of these shapes and types in one block of memory, which is uninitialised unless `zeros`.

    NumPy asks Linux for huge pages if a block has 4 MiB or more, and the keys of a single layer are seldom that large. With huge
    pages a step after 2,048 tokens takes a sixteenth less time (version 0.2, 135 M parameters).
    """
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in kinds]
    starts = [0, *itertools.accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]
    whole = (np.zeros if zeros else np.empty)(starts[-1] + ALIGNMENT, np.uint8)
    whole = whole[-whole.ctypes.data % ALIGNMENT :]
    pieces = [whole[start : start + size] for start, size in zip(starts, sizes, strict=False)]
    return [piece.view(dtype).reshape(shape) for piece, (shape, dtype) in zip(pieces, kinds, strict=True)]


class SharedCache:
    """One buffer [allocated_rows, kv_heads, capacity, head_size] per tensor (sizes differ), which the graph updates in place.

    The capacity of layers with a window has a limit. If a graph has states only, there are no buffers.
    """

    def __init__(
        self, session: OnnxRuntimeSession, tensors: tuple[CacheTensor, ...], *, rows: int, capacity: int, context_length: int
    ) -> None:
        self.session, self.tensors, self.rows, self.context_length = session, tensors, rows, context_length
        self.by_token = tuple(tensor for tensor in tensors if tensor.length_axis is not None)
        self.lengths = [0] * rows
        self.capacity = 0
        self.allocated_rows = 0
        """Rows that the buffers have: as many as have been used."""
        self.buffers: Tensors = {}
        self.states = States(session.device, tensors, rows)
        self.windows = Windows(tensors, rows)
        self.runs: dict[tuple[range | int, int], BoundRun] = {}
        self.ones = np.ones((1, 0), dtype=np.int64)
        """Masks of a single row are slices of this."""
        self.step_mask = np.ones((1, 0), dtype=np.int64)
        """The last mask of a single token of a single row; it is reused, as a new array would take 1% of a step."""
        self.initial_capacity = capacity
        """Tokens that the first buffers have memory for."""

    def reserve(self, row: int, tokens: int) -> None:
        """See `Cache.reserve`."""
        self.ensure_capacity(row + 1, tokens)

    def ensure_capacity(self, rows: int, length: int) -> None:
        """Make sure that the buffers have memory for `rows` rows of `length` tokens; grow them if not."""
        held, capacity = self.allocated_rows, self.capacity
        if rows > held:
            held = min(max(rows, 2 * held), self.rows)
        if max(length, 1) > capacity:  # more than requested, as a text follows the prompt
            capacity = max(length, min(max(capacity * 3 // 2, length + self.initial_capacity), self.context_length))
        if (held, capacity) != (self.allocated_rows, self.capacity):
            self.grow(held, capacity)

    def grow(self, rows: int, capacity: int) -> None:
        """Make buffers for `rows` rows of `capacity` tokens, and copy the used part into them."""
        device = self.session.device
        buffers = {}
        kinds = [(tensor.sized(rows, tensor.held(capacity)), tensor.dtype) for tensor in self.by_token]
        # cuDNN's attention multiplies what lies beyond a row's length by 0, which makes NaN of a NaN.
        arrays = allocate_contiguous(kinds, zeros=device.kind != "cpu")
        for tensor, array in zip(self.by_token, arrays, strict=True):
            for row in range(self.rows):
                if used := self.columns(tensor, row):
                    part = tensor.index(row, slice(used))
                    array[part] = self.buffers[tensor.past].numpy()[part]
            buffers[tensor.past] = OrtValue.ortvalue_from_numpy(array, device.kind, device.index)
        self.ones = np.ones((1, capacity), dtype=np.int64)
        self.ones.flags.writeable = False
        self.buffers, self.allocated_rows, self.capacity, self.runs = buffers, rows, capacity, {}  # last, when nothing can fail

    def columns(self, tensor: CacheTensor, row: int) -> int:
        """Columns of a tensor's buffer that a row uses."""
        length = self.lengths[row]
        return length if tensor.window is None else self.windows.columns(row, length)

    def settle(self, rows: range, new: int) -> None:
        """Provide memory for `new` more tokens of rows."""
        for row in rows:
            self.windows.settle(row, self.lengths[row], self.buffers)
        self.ensure_capacity(rows.stop, max(self.lengths[row] for row in rows) + new)

    def begin(self, rows: range, new: int, active: Sequence[int] = ()) -> BoundRun:
        """See `Cache.begin`; a binding is reused until the buffers move."""
        self.settle(rows, new)
        side = self.states.begin(rows, active)
        if (rows, side) not in self.runs:
            self.runs[rows, side] = BoundRun(self.session, self.bind(rows, side))
        return self.runs[rows, side].reset()

    def begin_elsewhere(self, session: OnnxRuntimeSession, row: int, new: int, presents: Mapping[str, Sequence[str]]) -> BoundRun:
        """As `begin`, for one row and another graph over the same tensors; `presents`: its outputs that replace each present."""
        self.settle(range(row, row + 1), new)
        key = row, max(map(len, presents.values()))
        if key not in self.runs:
            self.runs[key] = BoundRun(session, self.bind(range(row, row + 1), 0, session, presents))
        return self.runs[key].reset()

    def bind(
        self, rows: range, side: int, session: OnnxRuntimeSession | None = None, presents: Mapping[str, Sequence[str]] | None = None
    ) -> IOBinding:
        """Bind these rows of every buffer as past and as present, of our graph or of another: see `begin_elsewhere`."""
        binding, device = (session or self.session).ort.io_binding(), self.session.device
        for tensor in self.by_token:
            shape = list(tensor.sized(len(rows), tensor.held(self.capacity)))
            pointer = self.buffers[tensor.past].data_ptr() + rows.start * math.prod(shape[1:]) * tensor.dtype.itemsize
            binding.bind_input(tensor.past, device.kind, device.index, tensor.dtype.type, shape, pointer)
            for present in (tensor.present,) if presents is None else presents[tensor.present]:
                binding.bind_output(present, device.kind, device.index, tensor.dtype.type, shape, pointer)
        self.states.bind(binding, rows, side)
        return binding

    def end(self, rows: range, advanced: Sequence[int]) -> None:
        """See `Cache.end`; the graph has already written keys and values in place."""
        self.states.end(rows)
        for row, count in zip(rows, advanced, strict=True):
            self.lengths[row] += count

    def mask(self, rows: range, new: int) -> npt.NDArray[np.int64]:
        """See `Cache.mask`; each row begins with its ones, padding follows."""
        lengths = [self.lengths[row] + new for row in rows]
        longest = max(lengths)
        if new > 1 or longest == 1:
            return self.ones[:, :longest] if len(rows) == 1 else mask_of(lengths)
        width = min(-(-longest // MASK_COLUMNS) * MASK_COLUMNS, self.capacity)
        return self.mask_of_step(longest, width) if len(rows) == 1 else mask_of(lengths, width)

    def mask_of_step(self, length: int, width: int) -> npt.NDArray[np.int64]:
        """`length` ones, then zeros up to `width`: fewer than `MASK_COLUMNS`."""
        if self.step_mask.shape[1] != width:
            self.step_mask = np.ones((1, width), dtype=np.int64)
        self.step_mask[0, -MASK_COLUMNS:length] = 1
        self.step_mask[0, length:] = 0
        return self.step_mask

    def rewind(self, row: int, length: int) -> None:
        """See `Cache.rewind`."""
        self.states.rewind(row, length)
        self.windows.rewind(row, length, self.lengths[row], self.buffers)
        self.lengths[row] = length

    def copy_row(self, source: int, target: int) -> None:
        """See `Cache.copy_row`; only the used part is copied."""
        self.ensure_capacity(max(source, target) + 1, self.lengths[source])
        for tensor in self.by_token:
            buffer, used = self.buffers[tensor.past], self.columns(tensor, source)
            values = buffer.numpy()  # on the CPU the buffer itself, elsewhere a copy
            values[tensor.index(target, slice(used))] = values[tensor.index(source, slice(used))]
            if self.session.device.kind != "cpu":
                buffer.update_inplace(values)
        self.states.copy_row(source, target)
        self.windows.copy_row(source, target)
        self.lengths[target] = self.lengths[source]

    def take(self, row: int, length: int) -> Arrays:
        """See `Cache.take`."""
        return {name: array if array.flags.owndata else copied(array) for name, array in self.views(row, length).items()}

    def views(self, row: int, length: int) -> Arrays:
        """As `take`, without copies of tensors that hold the whole text: they are valid until the cache changes."""
        part = slice(row, row + 1), slice(length)
        self.ensure_capacity(row + 1, length)
        ends = self.windows.take(row, length, self.buffers)
        return {
            one.past: ends[one.past] if one.past in ends else self.buffers[one.past].numpy()[one.index(*part)]
            for one in self.by_token
        }

    def put(self, row: int, arrays: ArrayMapping, length: int) -> None:
        """See `Cache.put`."""
        self.ensure_capacity(row + 1, length)
        self.windows.put(row, arrays, length, self.buffers)
        for tensor in self.by_token:
            if tensor.window is not None:
                continue
            buffer = self.buffers[tensor.past]
            values = buffer.numpy()
            values[tensor.index(slice(row, row + 1), slice(length))] = arrays[tensor.past][tensor.index(EVERY, slice(length))]
            if self.session.device.kind != "cpu":
                buffer.update_inplace(values)
        self.lengths[row] = length
