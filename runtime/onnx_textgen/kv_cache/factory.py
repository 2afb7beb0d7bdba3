"""What a graph carries from run to run: the only file, beside `recurrent_states` and `paged`, that knows where it lies.

A graph whose attention updates its cache in place gets `SharedCache`: one buffer per tensor, bound as past and as present, its
capacity raised by half when it runs out. A graph that returns a longer present gets `GrowingCache`; OpenVINO gets a `PagedCache`.
Every tensor has the shape that the graph gives it. All hold one or more rows, each with its own length, and the `States` of the
graph's recurrent layers, if it has such; what no row holds is never read. An exception on the way leaves a cache as it was.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..backends.onnxruntime_session import BoundRun, IOBinding, OrtValue, Session
from ..backends.openvino_session import OpenVINOSession
from ..backends.protocol import Graph, Run, mask_of
from ..backends.signature import CacheTensor
from ..errors import PackageError
from .paged import PagedCache
from .recurrent_states import States
from .snapshot import Arrays, copied

SMALLEST_CAPACITY = 64
ALIGNMENT = 64
"""Bytes of a line of the processor's caches."""
MASK_COLUMNS = 64
"""Masks of single tokens have a multiple of so many columns, so that a binding to one lasts for as many steps."""
EVERY = slice(None)

Tensors = dict[str, OrtValue]
"""Keys and values by the name of the graph's past input."""


class Cache(Protocol):
    """What `rows` sequences leave behind."""

    lengths: list[int]
    """Tokens held, per row."""
    tensors: tuple[CacheTensor, ...]
    """Everything the graph carries, states included."""
    states: States

    @property
    def room(self) -> int:
        """Tokens of a row that the tensors have a place for now."""
        ...

    def reserve(self, row: int, tokens: int) -> None:
        """Make room for so many tokens of a row at once, if it is made ahead at all."""
        ...

    def begin(self, rows: range, new: int, active: Sequence[int] = ()) -> Run:
        """A run with the past of one row, or of several from the first on, in place, and room for `new` more tokens.

        `active` says which of the rows are going to advance, if not all.
        """
        ...

    def end(self, rows: range, advanced: Sequence[int]) -> None:
        """Take over what the run left; `advanced` says by how many tokens each of the rows grew."""
        ...

    def mask(self, rows: range, new: int) -> npt.NDArray[np.int64]:
        """The attention mask of the run that `begin` prepared: [rows, past + new], with columns of zeros behind a single token."""
        ...

    def rewind(self, row: int, length: int) -> None:
        """Forget all but the first `length` tokens of a row, which `states.nearest` allows."""
        ...

    def copy_row(self, source: int, target: int) -> None:
        """Make a row hold what another one holds."""
        ...

    def take(self, row: int, length: int) -> Arrays:
        """Copies of the keys and values of a row's first `length` tokens."""
        ...

    def put(self, row: int, arrays: Arrays, length: int) -> None:
        """Make a row hold the first `length` tokens of what `take` gave, here or elsewhere; states are not touched."""
        ...


def check_cache(session: Graph) -> None:
    """Refuse a graph that carries nothing, or what no cache here can hold; raises `PackageError`."""
    kinds = {tensor.kind for tensor in session.cache_tensors}
    if not kinds:
        raise PackageError("the graph has no cache, so it would forget what it was fed; export the model again")
    if kinds >= {"shared", "growing"}:
        raise PackageError("the graph updates some keys and values in place and returns others longer; export the model again")


def make_cache(graph: Graph, *, rows: int, capacity: int | None, context_length: int) -> Cache:
    """The cache that engine and shapes ask for, with room for `capacity` tokens at first and `context_length` at most."""
    least = min(max(capacity or SMALLEST_CAPACITY, graph.hints.window), context_length)
    if isinstance(graph, OpenVINOSession):
        return PagedCache(graph, rows=rows, capacity=least)
    assert isinstance(graph, Session), "there are two engines"
    session, tensors = graph, graph.cache_tensors
    if any(tensor.kind == "growing" for tensor in tensors):
        return GrowingCache(session, tensors, rows=rows)
    cache = SharedCache(session, tensors, rows=rows, capacity=least, context_length=context_length)
    if capacity is not None:  # else the first prompt says how much is needed
        cache.grow(1, least)
    return cache


def side_by_side(kinds: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> list[npt.NDArray[Any]]:
    """Arrays of these shapes and types in one piece of memory, whose content means nothing yet.

    NumPy asks Linux for huge pages where a piece is 4 MiB or larger, which a single layer's keys seldom are; a step behind 2,048
    tokens takes a sixteenth less with them (`benchmarks/cache_memory.py`).
    """
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in kinds]
    starts = [0, *itertools.accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]
    whole = np.empty(starts[-1] + ALIGNMENT, np.uint8)
    whole = whole[-whole.ctypes.data % ALIGNMENT :]
    pieces = [whole[start : start + size] for start, size in zip(starts, sizes, strict=False)]
    return [piece.view(dtype).reshape(shape) for piece, (shape, dtype) in zip(pieces, kinds, strict=True)]


class SharedCache:
    """One buffer per tensor, [rows_held, kv_heads, capacity, head_size] with sizes of its own, updated in place by the graph.

    A graph that has states alone is a shared cache without buffers.
    """

    def __init__(
        self, session: Session, tensors: tuple[CacheTensor, ...], *, rows: int, capacity: int, context_length: int
    ) -> None:
        self.session, self.tensors, self.rows, self.context_length = session, tensors, rows, context_length
        self.by_token = tuple(tensor for tensor in tensors if tensor.length_axis is not None)
        self.lengths = [0] * rows
        self.capacity = 0
        self.rows_held = 0
        """Of how many rows the buffers are: as many as have been used."""
        self.buffers: Tensors = {}
        self.states = States(session, tensors, rows)
        self.runs: dict[tuple[range | int, int], BoundRun] = {}
        self.ones = np.ones((1, 0), dtype=np.int64)
        """What masks of a single row are cut from."""
        self.step_mask = np.ones((1, 0), dtype=np.int64)
        """The last mask of a single token of a single row: arrays made anew would take a hundredth of a step."""
        self.least = capacity
        """Tokens that buffers have room for at first."""

    @property
    def room(self) -> int:
        """See `Cache.room`."""
        return self.capacity

    def reserve(self, row: int, tokens: int) -> None:
        """See `Cache.reserve`."""
        self.make_room(row + 1, tokens)

    def make_room(self, rows: int, length: int) -> None:
        """Grow where the buffers have no place for so many rows, or for so many tokens of each, or are not there yet."""
        held, capacity = self.rows_held, self.capacity
        if rows > held:
            held = min(max(rows, 2 * held), self.rows)
        if max(length, 1) > capacity:  # room beyond what is asked for, as a prompt is followed by a text
            capacity = max(length, min(max(capacity * 3 // 2, length + self.least), self.context_length))
        if (held, capacity) != (self.rows_held, self.capacity):
            self.grow(held, capacity)

    def grow(self, rows: int, capacity: int) -> None:
        """Make buffers for `rows` rows of `capacity` tokens and carry the used part over."""
        device = self.session.device
        buffers = {}
        arrays = side_by_side([(tensor.sized(rows, capacity), tensor.dtype) for tensor in self.by_token])
        for tensor, array in zip(self.by_token, arrays, strict=True):
            for row, used in enumerate(self.lengths):
                if used:
                    part = tensor.part(row, slice(used))
                    array[part] = self.buffers[tensor.past].numpy()[part]
            buffers[tensor.past] = OrtValue.ortvalue_from_numpy(array, device.kind, device.index)
        self.ones = np.ones((1, capacity), dtype=np.int64)
        self.ones.flags.writeable = False
        self.buffers, self.rows_held, self.capacity, self.runs = buffers, rows, capacity, {}  # once nothing can fail any more

    def begin(self, rows: range, new: int, active: Sequence[int] = ()) -> BoundRun:
        """See `Cache.begin`; a binding lasts until the buffers move."""
        self.make_room(rows.stop, max(self.lengths[row] for row in rows) + new)
        side = self.states.begin(rows, active)
        if (rows, side) not in self.runs:
            self.runs[rows, side] = BoundRun(self.session, self.bind(rows, side))
        return self.runs[rows, side].ready()

    def begin_elsewhere(self, session: Session, row: int, new: int, presents: Mapping[str, Sequence[str]]) -> BoundRun:
        """The same for a row, by another graph over the same tensors; `presents` names its outputs that take each one's place."""
        self.make_room(row + 1, self.lengths[row] + new)
        key = row, max(map(len, presents.values()))
        if key not in self.runs:
            self.runs[key] = BoundRun(session, self.bind(range(row, row + 1), 0, session, presents))
        return self.runs[key].ready()

    def bind(
        self, rows: range, side: int, session: Session | None = None, presents: Mapping[str, Sequence[str]] | None = None
    ) -> IOBinding:
        """Bind some rows of every buffer as past and as present, of the graph or of another one: see `begin_elsewhere`."""
        binding, device = (session or self.session).ort.io_binding(), self.session.device
        for tensor in self.by_token:
            shape = list(tensor.sized(len(rows), self.capacity))
            pointer = self.buffers[tensor.past].data_ptr() + rows.start * math.prod(shape[1:]) * tensor.dtype.itemsize
            binding.bind_input(tensor.past, device.kind, device.index, tensor.dtype.type, shape, pointer)
            for present in (tensor.present,) if presents is None else presents[tensor.present]:
                binding.bind_output(present, device.kind, device.index, tensor.dtype.type, shape, pointer)
        self.states.bind(binding, rows, side)
        return binding

    def end(self, rows: range, advanced: Sequence[int]) -> None:
        """See `Cache.end`; the graph has written keys and values in place already."""
        self.states.end(rows)
        for row, count in zip(rows, advanced, strict=True):
            self.lengths[row] += count

    def mask(self, rows: range, new: int) -> npt.NDArray[np.int64]:
        """See `Cache.mask`; a row's tokens come first."""
        lengths = [self.lengths[row] + new for row in rows]
        longest = max(lengths)
        if new > 1 or longest == 1:
            return self.ones[:, :longest] if len(rows) == 1 else mask_of(lengths)
        width = min(-(-longest // MASK_COLUMNS) * MASK_COLUMNS, self.capacity)
        return self.mask_of_step(longest, width) if len(rows) == 1 else mask_of(lengths, width)

    def mask_of_step(self, length: int, width: int) -> npt.NDArray[np.int64]:
        """`length` ones and then zeros, of which there are fewer than `MASK_COLUMNS`."""
        if self.step_mask.shape[1] != width:
            self.step_mask = np.ones((1, width), dtype=np.int64)
        self.step_mask[0, -MASK_COLUMNS:length] = 1
        self.step_mask[0, length:] = 0
        return self.step_mask

    def rewind(self, row: int, length: int) -> None:
        """See `Cache.rewind`."""
        self.states.rewind(row, length)
        self.lengths[row] = length

    def copy_row(self, source: int, target: int) -> None:
        """See `Cache.copy_row`; only the used part is copied."""
        used = self.lengths[source]
        self.make_room(max(source, target) + 1, used)
        for tensor in self.by_token:
            buffer = self.buffers[tensor.past]
            values = buffer.numpy()  # on the CPU the buffer itself, elsewhere a copy
            values[tensor.part(target, slice(used))] = values[tensor.part(source, slice(used))]
            if self.session.device.kind != "cpu":
                buffer.update_inplace(values)
        self.states.copy_row(source, target)
        self.lengths[target] = used

    def take(self, row: int, length: int) -> Arrays:
        """See `Cache.take`."""
        part = slice(row, row + 1), slice(length)
        self.make_room(row + 1, length)
        return {one.past: copied(self.buffers[one.past].numpy()[one.part(*part)]) for one in self.by_token}

    def put(self, row: int, arrays: Arrays, length: int) -> None:
        """See `Cache.put`."""
        self.make_room(row + 1, length)
        for tensor in self.by_token:
            buffer = self.buffers[tensor.past]
            values = buffer.numpy()
            values[tensor.part(slice(row, row + 1), slice(length))] = arrays[tensor.past][tensor.part(EVERY, slice(length))]
            if self.session.device.kind != "cpu":
                buffer.update_inplace(values)
        self.lengths[row] = length


class GrowingCache:
    """Tensors that the graph returns one piece longer.

    A row that is fed alone lies alone: [1, kv_heads, tokens, head_size], with sizes of each tensor's own. A common step joins the
    first rows: [rows, kv_heads, width, head_size], their ends aligned on the right. `held` [rows, width] is then 1 where a column
    is a token of the row and 0 where the row was padded or idled.
    """

    def __init__(self, session: Session, tensors: tuple[CacheTensor, ...], *, rows: int) -> None:
        self.session, self.tensors, self.rows = session, tensors, rows
        self.by_token = tuple(tensor for tensor in tensors if tensor.length_axis is not None)
        self.lengths = [0] * rows
        self.states = States(session, tensors, rows)
        self.apart: list[Tensors] = [
            {one.past: self.to_device(np.zeros(one.sized(1, 0), one.dtype)) for one in self.by_token} for _ in range(rows)
        ]
        self.joined: Tensors = {}
        """The first rows in one, or nothing while all lie apart."""
        self.held = np.zeros((0, 0), dtype=np.int64)
        self.running: IOBinding | None = None

    def to_device(self, array: npt.NDArray[Any]) -> OrtValue:
        """An array as a tensor where the session runs; on the CPU it is the array's own memory, which must not be a tensor's."""
        device = self.session.device
        return OrtValue.ortvalue_from_numpy(array, device.kind, device.index)

    @property
    def room(self) -> int:
        """See `Cache.room`: the tokens of the longest row."""
        return max(self.lengths)

    def reserve(self, row: int, tokens: int) -> None:
        """See `Cache.reserve`: every run returns tensors of its own."""

    def join(self, rows: int) -> None:
        """Put the first rows side by side, their ends aligned."""
        if self.joined and len(self.held) == rows:
            return
        self.split()
        width = max(self.lengths[:rows])
        starts = [width - length for length in self.lengths[:rows]]
        joined = {}
        for tensor in self.by_token:
            array = np.zeros(tensor.sized(rows, width), tensor.dtype)
            for row, start in enumerate(starts):
                array[tensor.part(row, slice(start, None))] = self.apart[row][tensor.past].numpy()[tensor.part(0, EVERY)]
            joined[tensor.past] = self.to_device(array)
        self.held = (np.arange(width)[None] >= np.array(starts)[:, None]).astype(np.int64)
        self.joined, self.apart[:rows] = joined, [{} for _ in range(rows)]

    def split(self) -> None:
        """Take the rows apart again, without padding and without what idle rows were given."""
        if not self.joined:
            return
        arrays = [(tensor, self.joined[tensor.past].numpy()) for tensor in self.by_token]
        columns = [np.flatnonzero(held) for held in self.held]
        self.apart[: len(columns)] = [
            {one.past: self.to_device(np.ascontiguousarray(array[one.part(slice(row, row + 1), held)])) for one, array in arrays}
            for row, held in enumerate(columns)
        ]
        self.joined = {}

    def begin(self, rows: range, new: int, active: Sequence[int] = ()) -> BoundRun:
        """See `Cache.begin`; a row that idled and goes on is moved up first, as sliding windows count columns."""
        together = len(rows) > 1
        idled = together and self.joined and any(on and not held[-1:].any() for held, on in zip(self.held, active, strict=False))
        if idled or not together:
            self.split()
        if together:
            self.join(len(rows))
        side = self.states.begin(rows, active)
        binding, device = self.session.ort.io_binding(), self.session.device
        values = self.joined if together else self.apart[rows.start]
        for tensor in self.by_token:
            binding.bind_ortvalue_input(tensor.past, values[tensor.past])
            binding.bind_output(tensor.present, device.kind, device.index)
        self.states.bind(binding, rows, side)
        self.running = binding
        return BoundRun(self.session, binding)

    def end(self, rows: range, advanced: Sequence[int]) -> None:
        """See `Cache.end`."""
        assert self.running is not None, "end follows begin"
        outputs = self.running.get_outputs()  # in the order bound; states and logits come after
        presents = {tensor.past: value for tensor, value in zip(self.by_token, outputs, strict=False)}
        self.running = None
        self.states.end(rows)
        if len(rows) > 1:
            self.joined, self.held = presents, np.hstack([self.held, np.array(advanced, dtype=np.int64)[:, None]])
        else:
            self.apart[rows.start] = presents
        for row, count in zip(rows, advanced, strict=True):
            self.lengths[row] += count

    def mask(self, rows: range, new: int) -> npt.NDArray[np.int64]:
        """See `Cache.mask`."""
        past = self.held if len(rows) > 1 else np.ones((1, self.lengths[rows.start]), dtype=np.int64)
        return np.pad(past, ((0, 0), (0, new)), constant_values=1)

    def rewind(self, row: int, length: int) -> None:
        """See `Cache.rewind`."""
        self.split()
        self.apart[row] = {
            tensor.past: self.to_device(self.apart[row][tensor.past].numpy()[tensor.part(EVERY, slice(length))].copy())
            for tensor in self.by_token
        }
        self.states.rewind(row, length)
        self.lengths[row] = length

    def copy_row(self, source: int, target: int) -> None:
        """See `Cache.copy_row`; nothing is copied, as a run never writes into a past."""
        self.split()
        self.apart[target] = dict(self.apart[source])
        self.states.copy_row(source, target)
        self.lengths[target] = self.lengths[source]

    def take(self, row: int, length: int) -> Arrays:
        """See `Cache.take`."""
        self.split()
        return {one.past: copied(self.apart[row][one.past].numpy()[one.part(EVERY, slice(length))]) for one in self.by_token}

    def put(self, row: int, arrays: Arrays, length: int) -> None:
        """See `Cache.put`."""
        self.split()
        part = {one.past: copied(arrays[one.past][one.part(EVERY, slice(length))]) for one in self.by_token}
        self.apart[row] = {name: self.to_device(array) for name, array in part.items()}
        self.lengths[row] = length
