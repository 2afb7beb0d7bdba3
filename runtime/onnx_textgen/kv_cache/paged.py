"""The cache of OpenVINO's PagedAttention: keys and values in blocks of tokens, and per row the list of its blocks.

The graph updates the blocks in place. All rows take blocks from one pool, so to roll back or refill a row moves no data.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backends.openvino.operators import BLOCK_BEGINS, BLOCK_INDICES
from ..backends.openvino.session import OpenVINORun, OpenVINOSession
from ..backends.protocol import CPU, mask_of
from ..backends.signature import CacheTensor
from .recurrent_states import States
from .snapshot import ArrayMapping, Arrays
from .windows import Windows


class PagedCache:
    """See `protocol.Cache`; arrays are [blocks, kv_heads, block_size, head_size], sizes differ by tensor."""

    def __init__(self, session: OpenVINOSession, *, rows: int, capacity: int) -> None:
        self.tensors, self.block_size = session.cache_tensors, session.block_size
        self.lengths = [0] * rows
        self.states = States(CPU, (), rows)
        self.windows = Windows((), rows)
        self.request = session.new_infer_request()
        self.blocks: list[list[int]] = [[] for _ in range(rows)]
        """The blocks of each row, in the order of its tokens."""
        self.free: list[int] = []
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        self.add_blocks(self.blocks_for(capacity))

    @property
    def capacity(self) -> int:
        """See `Cache.capacity`: the tokens of the longest row if it took all free blocks."""
        return (len(self.free) + max(map(len, self.blocks))) * self.block_size

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this number of tokens."""
        return -(-tokens // self.block_size)

    def add_blocks(self, count: int) -> None:
        """Add `count` blocks to the pool: allocate it again, and copy the existing blocks."""
        held = sum(map(len, self.blocks)) + len(self.free)
        arrays = {one.past: np.zeros(one.sized(held + count, self.block_size), one.dtype) for one in self.tensors}
        for name, array in self.arrays.items():
            arrays[name][:held] = array
        for name, array in arrays.items():
            self.request.bind_cache(name, array)
        self.arrays = arrays
        self.free = [*range(held + count - 1, held - 1, -1), *self.free]

    def reserve(self, row: int, tokens: int) -> None:
        """See `Cache.reserve`; if blocks are missing, the pool is at least doubled."""
        missing = self.blocks_for(tokens) - len(self.blocks[row])
        if missing > len(self.free):
            self.add_blocks(max(missing - len(self.free), sum(map(len, self.blocks)) + len(self.free)))
        for _ in range(missing):
            self.blocks[row].append(self.free.pop())

    def begin(self, rows: range, new: int, active: Sequence[int] = ()) -> OpenVINORun:
        """See `Cache.begin`; what the run writes for an idle row lies after its tokens, where the next ones overwrite it."""
        del active
        for row in rows:
            self.reserve(row, self.lengths[row] + new)
        held = [self.blocks[row][: self.blocks_for(self.lengths[row] + new)] for row in rows]
        run = self.request.new_run()
        run.set_input(BLOCK_INDICES, np.concatenate(held).astype(np.int32))
        run.set_input(BLOCK_BEGINS, np.cumsum([0, *map(len, held)]).astype(np.int32))
        return run

    def end(self, rows: range, advanced: Sequence[int]) -> None:
        """See `Cache.end`."""
        for row, count in zip(rows, advanced, strict=True):
            self.lengths[row] += count

    def mask(self, rows: range, new: int) -> npt.NDArray[np.int64]:
        """See `Cache.mask`."""
        return mask_of([self.lengths[row] + new for row in rows])

    def rewind(self, row: int, length: int) -> None:
        """See `Cache.rewind`; blocks that are no longer needed become free."""
        kept = self.blocks_for(length)
        self.free += reversed(self.blocks[row][kept:])
        del self.blocks[row][kept:]
        self.lengths[row] = length

    def copy_row(self, source: int, target: int) -> None:
        """See `Cache.copy_row`."""
        self.rewind(target, 0)
        self.reserve(target, self.lengths[source])
        taken = self.blocks[source][: len(self.blocks[target])]
        for array in self.arrays.values():
            array[self.blocks[target]] = array[taken]
        self.lengths[target] = self.lengths[source]

    def take(self, row: int, length: int) -> Arrays:
        """See `Cache.take`."""
        return {one.past: self.take_one(one, row, length) for one in self.tensors}

    def take_one(self, tensor: CacheTensor, row: int, length: int) -> npt.NDArray[Any]:
        """Copy one tensor of a row's first `length` tokens: [1, heads, tokens, size]."""
        blocks = self.blocks[row][: self.blocks_for(length)]
        array = np.empty(tensor.sized(1, len(blocks) * self.block_size), tensor.dtype)
        for place, part in consecutive(blocks):
            in_blocks(array, self.block_size)[place] = self.arrays[tensor.past][part]
        return array[:, :, :length]

    def put(self, row: int, arrays: ArrayMapping, length: int) -> None:
        """See `Cache.put`."""
        self.rewind(row, 0)
        self.reserve(row, length)
        whole = length // self.block_size * self.block_size
        for one in self.tensors:
            array, blocks = arrays[one.past], self.arrays[one.past]
            for place, part in consecutive(self.blocks[row][: whole // self.block_size]):
                blocks[part] = in_blocks(array[:, :, :whole], self.block_size)[place]
            if whole < length:
                blocks[self.blocks[row][-1], :, : length - whole] = array[0, :, whole:length]
        self.lengths[row] = length


def consecutive(blocks: Sequence[int]) -> list[tuple[slice, slice]]:
    """The runs of consecutive block numbers: where each is in the list, and its blocks. Slices copy faster than lists of numbers.

    >>> consecutive([4, 5, 6, 2])
    [(slice(0, 3, None), slice(4, 7, None)), (slice(3, 4, None), slice(2, 3, None))]
    """
    begins = [index for index, block in enumerate(blocks) if not index or block != blocks[index - 1] + 1]
    places = [slice(begin, end) for begin, end in itertools.pairwise([*begins, len(blocks)])]
    return [(place, slice(blocks[place.start], blocks[place.start] + place.stop - place.start)) for place in places]


def in_blocks(row: npt.NDArray[Any], block_size: int) -> npt.NDArray[Any]:
    """[1, heads, tokens, size] -> [blocks, heads, block_size, size], a view if the heads are one after the other in memory."""
    return row.reshape(row.shape[1], -1, block_size, row.shape[3]).swapaxes(0, 1)
