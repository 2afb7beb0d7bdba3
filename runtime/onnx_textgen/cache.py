"""The key/value cache: the only file that knows where keys and values lie.

A graph whose attention updates its cache in place gets `SharedCache`: one buffer per tensor, bound as past and as present, its
capacity doubled when it runs out. A graph that returns a longer present gets `GrowingCache`. Both hold one or more rows, each
with its own length; what no row holds is never read. An exception on the way leaves a cache as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .artifact import Geometry
from .errors import PackageError
from .session import IOBinding, OrtValue, Session

ELEMENT_TYPES: dict[str, np.dtype[Any]] = {"tensor(float)": np.dtype(np.float32), "tensor(float16)": np.dtype(np.float16)}
SMALLEST_CAPACITY = 64

Tensors = dict[str, OrtValue]
"""Keys and values by the name of the graph's past input."""


class Cache(Protocol):
    """Keys and values of `rows` sequences."""

    lengths: list[int]
    """Tokens held, per row."""

    def begin(self, row: int | None, new: int, active: Sequence[int] = ()) -> IOBinding:
        """A binding with the past of one row (or of all, where `row` is None) in place, and room for `new` more tokens.

        `active` says which rows are going to advance, if not all.
        """
        ...

    def end(self, row: int | None, advanced: Sequence[int]) -> None:
        """Take over what the run left; `advanced` says by how many tokens each of the rows grew."""
        ...

    def mask(self, row: int | None, new: int) -> npt.NDArray[np.int64]:
        """The attention mask of the run that `begin` prepared: [1 or rows, past + new]."""
        ...

    def rewind(self, row: int, length: int) -> None:
        """Forget all but the first `length` tokens of a row."""
        ...


def element_type(session: Session) -> np.dtype[Any]:
    """What the graph's keys and values are made of."""
    found = sorted({session.inputs[past][1] for past in session.cache_pairs})
    if len(found) != 1 or found[0] not in ELEMENT_TYPES:
        raise PackageError(f"the graph's cache holds {' and '.join(found)}, not float or float16 alone; export the model again")
    return ELEMENT_TYPES[found[0]]


def make_cache(session: Session, geometry: Geometry, *, rows: int = 1, capacity: int | None = None) -> SharedCache | GrowingCache:
    """The cache that the graph's own shapes ask for: shared where past and present have the same length."""
    if session.shares_cache:
        return SharedCache(session, geometry, rows=rows, capacity=capacity)
    return GrowingCache(session, geometry, rows=rows)


class SharedCache:
    """One buffer [rows, kv_heads, capacity, head_size] per tensor, updated in place by the graph."""

    def __init__(self, session: Session, geometry: Geometry, *, rows: int, capacity: int | None) -> None:
        self.session, self.geometry, self.pairs, self.rows = session, geometry, session.cache_pairs, rows
        self.lengths = [0] * rows
        self.dtype = element_type(session)
        self.capacity = 0
        self.buffers: Tensors = {}
        self.bindings: dict[int | None, IOBinding] = {}
        self.grow(min(capacity or SMALLEST_CAPACITY, geometry.context_length))

    def grow(self, capacity: int) -> None:
        """Make buffers of `capacity` tokens and carry the used part over."""
        used, device = max(self.lengths), self.session.device
        shape = (self.rows, self.geometry.kv_heads, capacity, self.geometry.head_size)
        buffers = {}
        for name in self.pairs:
            array = np.zeros(shape, self.dtype)  # pages nobody touches cost nothing
            if used:
                array[:, :, :used] = self.buffers[name].numpy()[:, :, :used]
            buffers[name] = OrtValue.ortvalue_from_numpy(array, device.kind, device.index)
        self.buffers, self.capacity, self.bindings = buffers, capacity, {}  # together, once nothing can fail any more

    def begin(self, row: int | None, new: int, active: Sequence[int] = ()) -> IOBinding:
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
    """Tensors that the graph returns one piece longer.

    A row that is fed alone lies alone: [1, kv_heads, tokens, head_size]. A common step joins the rows: [rows, kv_heads, width,
    head_size], their ends aligned on the right. `held` [rows, width] is then 1 where a column is a token of the row and 0 where
    the row was padded or idled.
    """

    def __init__(self, session: Session, geometry: Geometry, *, rows: int) -> None:
        self.session, self.geometry, self.pairs, self.rows = session, geometry, session.cache_pairs, rows
        self.lengths = [0] * rows
        self.dtype = element_type(session)
        empty = np.zeros((1, geometry.kv_heads, 0, geometry.head_size), self.dtype)
        self.apart: list[Tensors] = [{name: self.to_device(empty) for name in self.pairs} for _ in range(rows)]
        self.joined: Tensors = {}
        """All rows in one, or nothing while they lie apart."""
        self.held = np.zeros((rows, 0), dtype=np.int64)
        self.running: IOBinding | None = None

    def to_device(self, array: npt.NDArray[Any]) -> OrtValue:
        """An array as a tensor where the session runs."""
        device = self.session.device
        return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), device.kind, device.index)

    @property
    def width(self) -> int:
        """Tokens of the longest row."""
        return max(self.lengths)

    def join(self) -> None:
        """Put the rows side by side, their ends aligned."""
        if self.joined:
            return
        starts = [self.width - length for length in self.lengths]
        joined = {}
        for name in self.pairs:
            array = np.zeros((self.rows, self.geometry.kv_heads, self.width, self.geometry.head_size), self.dtype)
            for row, start in enumerate(starts):
                array[row, :, start:] = self.apart[row][name].numpy()[0]
            joined[name] = self.to_device(array)
        self.held = (np.arange(self.width)[None] >= np.array(starts)[:, None]).astype(np.int64)
        self.joined, self.apart = joined, []

    def split(self) -> None:
        """Take the rows apart again, without padding and without what idle rows were given."""
        if not self.joined:
            return
        arrays = {name: value.numpy() for name, value in self.joined.items()}
        rows = [np.flatnonzero(held) for held in self.held]
        self.apart = [
            {name: self.to_device(array[row : row + 1, :, columns]) for name, array in arrays.items()}
            for row, columns in enumerate(rows)
        ]
        self.joined = {}

    def begin(self, row: int | None, new: int, active: Sequence[int] = ()) -> IOBinding:
        """See `Cache.begin`; a row that idled and goes on is moved up first, as sliding windows count columns."""
        if row is not None or any(on and not self.held[index, -1:].any() for index, on in enumerate(active)):
            self.split()
        if row is None:
            self.join()
        binding, device = self.session.ort.io_binding(), self.session.device
        values = self.joined if row is None else self.apart[row]
        for past, present in self.pairs.items():
            binding.bind_ortvalue_input(past, values[past])
            binding.bind_output(present, device.kind, device.index)
        self.running = binding
        return binding

    def end(self, row: int | None, advanced: Sequence[int]) -> None:
        """See `Cache.end`."""
        assert self.running is not None, "end follows begin"
        presents = dict(zip(self.pairs, self.running.get_outputs(), strict=False))  # in the order bound; the logits come after
        self.running = None
        if row is None:
            self.joined, self.held = presents, np.hstack([self.held, np.array(advanced, dtype=np.int64)[:, None]])
        else:
            self.apart[row] = presents
        rows = range(self.rows) if row is None else [row]
        for index, count in zip(rows, advanced, strict=True):
            self.lengths[index] += count

    def mask(self, row: int | None, new: int) -> npt.NDArray[np.int64]:
        """See `Cache.mask`."""
        past = self.held if row is None else np.ones((1, self.lengths[row]), dtype=np.int64)
        return np.pad(past, ((0, 0), (0, new)), constant_values=1)

    def rewind(self, row: int, length: int) -> None:
        """See `Cache.rewind`."""
        self.split()
        self.apart[row] = {name: self.to_device(value.numpy()[:, :, :length]) for name, value in self.apart[row].items()}
        self.lengths[row] = length
