"""The key/value cache: the only file that knows where keys and values lie.

A graph whose attention updates its cache in place gets `SharedCache`: one buffer per tensor, bound as past and as present, its
capacity doubled when it runs out. A graph that returns a longer present gets `GrowingCache`. Both hold one or more rows, each
with its own length; what lies beyond a row's length is never read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .artifact import Geometry
from .errors import PackageError
from .session import IOBinding, OrtValue, Session

ELEMENT_TYPES: dict[str, Any] = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
SMALLEST_CAPACITY = 64

Array = npt.NDArray[Any]


class Cache(Protocol):
    """Keys and values of `rows` sequences."""

    lengths: list[int]
    """Tokens held, per row."""

    def begin(self, row: int | None, new: int) -> IOBinding:
        """A binding with the past of one row (or of all, where `row` is None) in place, and room for `new` more tokens."""
        ...

    def end(self, row: int | None, advanced: Sequence[int]) -> None:
        """Take over what the run left; `advanced` says by how many tokens each of the rows grew."""
        ...

    def mask(self, row: int | None, new: int) -> npt.NDArray[np.int64]:
        """The attention mask of the coming run: [1 or rows, past + new]."""
        ...

    def rewind(self, row: int, length: int) -> None:
        """Forget all but the first `length` tokens of a row."""
        ...


def cache_pairs(session: Session) -> dict[str, str]:
    """Past input -> present output, found by name."""
    pairs = {
        name: re.sub(r"^past_key_values\.", "present.", name)
        for name in session.inputs
        if re.match(r"past_key_values\.\d+\.", name)
    }
    missing = [present for present in pairs.values() if present not in session.outputs]
    if not pairs or missing:
        raise PackageError(f"the graph has no key/value cache to work with (lacks {(missing or ['past_key_values.0.key'])[0]})")
    return pairs


def make_cache(session: Session, geometry: Geometry, *, rows: int = 1, capacity: int | None = None) -> SharedCache | GrowingCache:
    """The cache that the graph's own shapes ask for: shared where past and present have the same length."""
    pairs = cache_pairs(session)
    past, present = next(iter(pairs.items()))
    if session.inputs[past][0][2] == session.outputs[present][0][2]:
        return SharedCache(session, geometry, pairs, rows=rows, capacity=capacity)
    return GrowingCache(session, geometry, pairs, rows=rows)


class SharedCache:
    """One buffer [rows, kv_heads, capacity, head_size] per tensor, updated in place by the graph."""

    def __init__(self, session: Session, geometry: Geometry, pairs: dict[str, str], *, rows: int, capacity: int | None) -> None:
        self.session, self.geometry, self.pairs, self.rows = session, geometry, pairs, rows
        self.lengths = [0] * rows
        self.dtype = np.dtype(ELEMENT_TYPES[session.inputs[next(iter(pairs))][1]])
        self.capacity = 0
        self.buffers: dict[str, OrtValue] = {}
        self.bindings: dict[int | None, IOBinding] = {}
        self.grow(min(capacity or SMALLEST_CAPACITY, geometry.context_length))

    def grow(self, capacity: int) -> None:
        """Make buffers of `capacity` tokens and carry the used part over."""
        used, device = max(self.lengths), self.session.device
        shape = (self.rows, self.geometry.kv_heads, capacity, self.geometry.head_size)
        for name in self.pairs:
            array = np.zeros(shape, self.dtype)  # pages nobody touches cost nothing
            if used:
                array[:, :, :used] = self.buffers[name].numpy()[:, :, :used]
            self.buffers[name] = OrtValue.ortvalue_from_numpy(array, device.kind, device.index)
        self.capacity = capacity
        self.bindings.clear()

    def begin(self, row: int | None, new: int) -> IOBinding:
        """See `Cache.begin`; bindings last until the buffers move."""
        needed = (max(self.lengths) if row is None else self.lengths[row]) + new
        if needed > self.capacity:
            self.grow(max(needed, min(2 * self.capacity, self.geometry.context_length)))
        if row not in self.bindings:
            self.bindings[row] = self.bind(row)
        return self.bindings[row]

    def bind(self, row: int | None) -> IOBinding:
        """Bind every buffer, or one row of it, as past and as present."""
        binding, device = self.session.ort.io_binding(), self.session.device
        shape = [self.rows if row is None else 1, self.geometry.kv_heads, self.capacity, self.geometry.head_size]
        row_bytes = self.geometry.kv_heads * self.capacity * self.geometry.head_size * self.dtype.itemsize
        for past, present in self.pairs.items():
            pointer = self.buffers[past].data_ptr() + (row or 0) * row_bytes
            binding.bind_input(past, device.kind, device.index, self.dtype.type, shape, pointer)
            binding.bind_output(present, device.kind, device.index, self.dtype.type, shape, pointer)
        return binding

    def end(self, row: int | None, advanced: Sequence[int]) -> None:
        """See `Cache.end`; the graph has written in place already."""
        rows = range(self.rows) if row is None else [row]
        for index, count in zip(rows, advanced, strict=True):
            self.lengths[index] += count

    def mask(self, row: int | None, new: int) -> npt.NDArray[np.int64]:
        """See `Cache.mask`; a row's tokens come first."""
        lengths = self.lengths if row is None else [self.lengths[row]]
        counts = np.array(lengths)[:, None] + new
        return (np.arange(int(counts.max()))[None] < counts).astype(np.int64)

    def rewind(self, row: int, length: int) -> None:
        """See `Cache.rewind`."""
        self.lengths[row] = length


class GrowingCache:
    """Tensors [rows, kv_heads, width, head_size] that the graph returns one piece longer; rows end together, on the right."""

    def __init__(self, session: Session, geometry: Geometry, pairs: dict[str, str], *, rows: int) -> None:
        self.session, self.geometry, self.pairs, self.rows = session, geometry, pairs, rows
        self.lengths = [0] * rows
        self.dtype = np.dtype(ELEMENT_TYPES[session.inputs[next(iter(pairs))][1]])
        empty = np.zeros((rows, geometry.kv_heads, 0, geometry.head_size), self.dtype)
        self.values = {name: self.to_device(empty) for name in pairs}
        self.running: IOBinding | None = None

    def to_device(self, array: Array) -> OrtValue:
        """An array as a tensor where the session runs."""
        device = self.session.device
        return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), device.kind, device.index)

    @property
    def width(self) -> int:
        """Tokens of the longest row."""
        return int(next(iter(self.values.values())).shape()[2])

    def begin(self, row: int | None, new: int) -> IOBinding:
        """See `Cache.begin`."""
        binding, device = self.session.ort.io_binding(), self.session.device
        for past, present in self.pairs.items():
            value = self.values[past]
            if row is not None and self.rows > 1:
                value = self.to_device(value.numpy()[row : row + 1, :, self.width - self.lengths[row] :])
            binding.bind_ortvalue_input(past, value)
            binding.bind_output(present, device.kind, device.index)
        self.running = binding
        return binding

    def end(self, row: int | None, advanced: Sequence[int]) -> None:
        """See `Cache.end`."""
        assert self.running is not None, "end follows begin"
        presents = dict(zip(self.output_names(), self.running.get_outputs(), strict=True))
        self.running = None
        for past, present in self.pairs.items():
            value = presents[present]
            if row is not None and self.rows > 1:
                value = self.put_row(self.values[past].numpy(), row, value.numpy())
            self.values[past] = value
        rows = range(self.rows) if row is None else [row]
        for index, count in zip(rows, advanced, strict=True):
            self.lengths[index] += count

    def output_names(self) -> list[str]:
        """Names in the order in which `begin` and the decoder bound the outputs."""
        return [*self.pairs.values(), "logits"]

    def put_row(self, array: Array, row: int, tokens: Array) -> OrtValue:
        """`array` with one row replaced by `tokens` [1, kv_heads, n, head_size], widened where needed, all ends aligned."""
        width = max(array.shape[2], tokens.shape[2])
        wider = np.zeros((*array.shape[:2], width, array.shape[3]), array.dtype)
        wider[:, :, width - array.shape[2] :] = array
        wider[row] = 0
        wider[row, :, width - tokens.shape[2] :] = tokens[0]
        return self.to_device(wider)

    def mask(self, row: int | None, new: int) -> npt.NDArray[np.int64]:
        """See `Cache.mask`; padding comes first."""
        lengths = self.lengths if row is None else [self.lengths[row]]
        width = (max(lengths) if self.rows == 1 or row is not None else self.width) + new
        return (np.arange(width)[None] >= width - (np.array(lengths)[:, None] + new)).astype(np.int64)

    def rewind(self, row: int, length: int) -> None:
        """See `Cache.rewind`."""
        start = self.width - self.lengths[row]
        for name, value in self.values.items():
            array = value.numpy()
            kept = array[row : row + 1, :, start : start + length]
            self.values[name] = self.to_device(kept) if self.rows == 1 else self.put_row(array, row, kept)
        self.lengths[row] = length
