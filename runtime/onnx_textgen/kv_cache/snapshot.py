"""Copies of a row's cache as plain arrays: to continue from in another row, to keep, to write to a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..backends.signature import CacheTensor

Arrays = dict[str, npt.NDArray[Any]]
"""Arrays by the name of the graph's past input, with a batch of 1."""
ArrayMapping = Mapping[str, npt.NDArray[Any]]
"""The same, perhaps made when they are asked for."""


class Origin(NamedTuple):
    """Adapter and engine that computed keys and values, and for whom: only those of one origin may follow each other."""

    adapter: str | None = None
    """The LoRA adapter that they were computed with."""
    engine: str | None = None
    """The device of the second engine that computed them; None: the graph that continues the text."""
    salt: str | None = None
    """Prompts of another salt neither reuse them nor show by a count or by time that they exist."""


OWN = Origin()
"""The graph itself, without an adapter."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class WindowCopy:
    """The last keys and values of layers with a window, up to one length of a text. Immutable, so it may be shared."""

    last: int
    shortest: int
    """The fewest tokens that a text can be continued from with them."""
    arrays: Arrays

    def serves(self, length: int) -> bool:
        """Return whether a text of `length` tokens can be continued with them."""
        return self.shortest <= length <= self.last

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def cut(self, length: int, tensors: Iterable[CacheTensor]) -> Arrays:
        """The arrays without the tokens after the first `length` of the text."""
        return {one.past: without_end(self.arrays[one.past], one, self.last - length) for one in tensors if one.past in self.arrays}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The tokens of one text, with their keys, values and states. Immutable, so it may be shared."""

    token_ids: tuple[int, ...]
    tensors: ArrayMapping
    """Keys and values of all tokens; of layers with a window, those of the last ones."""
    states: dict[int, Arrays] = dataclasses.field(default_factory=dict)
    """States of recurrent layers, by the number of tokens after which they were copied."""
    uses_long_rope: bool = False
    """Whether keys were rotated as for a text longer than the graph's rope switch."""
    origin: Origin = OWN
    shortest: int = 0
    """The fewest tokens, but 0, that `tensors` can be cut to: layers with a window have forgotten what a shorter text needs."""
    exact_length: int | None = None
    """How many tokens, from the first, were fed as those of a prompt, to the last bit; None: all."""
    windows: tuple[WindowCopy, ...] = ()
    """What layers with a window held at shorter lengths."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (self.tensors, *self.states.values(), *(each.arrays for each in self.windows))
        return sum(array.nbytes for each in arrays for array in each.values())

    def exact_part(self, length: int) -> int:
        """How many of the first `length` tokens are exact."""
        return length if self.exact_length is None else min(self.exact_length, length)

    def usable(self, length: int) -> int:
        """The longest part of the first `length` tokens that a decoder can continue from, in tokens."""
        length = min(length, len(self.token_ids))
        if self.states:
            held = (each for each in self.states if each <= length and self.nearest_window(each) == each)
            return max(held, default=0)
        return self.nearest_window(length)

    def nearest_window(self, length: int) -> int:
        """The most tokens, at most `length`, that layers with a window can continue from."""
        if length >= self.shortest:
            return length
        return max((min(length, each.last) for each in self.windows if each.serves(min(length, each.last))), default=0)

    def beginning(self, length: int, tensors: Collection[CacheTensor]) -> Snapshot:
        """The first `length` tokens, or as many of them as a decoder can continue from."""
        if (length := self.usable(length)) == len(self.token_ids):
            return self
        if not length:
            return Snapshot((), {}, origin=self.origin)
        copy = self.window_for(length)
        return dataclasses.replace(
            self,
            token_ids=self.token_ids[:length],
            tensors=self.cut(length, tensors),
            states={held: arrays for held, arrays in self.states.items() if held <= length},
            shortest=self.shortest if copy is None else copy.shortest,
            exact_length=self.exact_part(length),
            windows=tuple(each for each in self.windows if each.last < length),
        )

    def window_for(self, length: int) -> WindowCopy | None:
        """The copy that has what layers with a window need for `length` tokens; None: `tensors` have it."""
        return None if length >= self.shortest else next(each for each in self.windows if each.serves(length))

    def cut(self, length: int, tensors: Iterable[CacheTensor]) -> ArrayMapping:
        """The arrays without the tokens after the first `length`, which `usable` returns."""
        if not (dropped := len(self.token_ids) - length):
            return self.tensors
        growing = [one for one in tensors if one.length_axis is not None]
        copy = self.window_for(length)
        ends = {} if copy is None else copy.cut(length, growing)
        return {
            one.past: ends[one.past] if one.past in ends else without_end(self.tensors[one.past], one, dropped) for one in growing
        }


def without_end(array: npt.NDArray[Any], tensor: CacheTensor, dropped: int) -> npt.NDArray[Any]:
    """A view of an array of keys or values without its last `dropped` tokens."""
    kept: npt.NDArray[Any] = array[tensor.index(slice(None), slice(array.shape[tensor.length_axis or 0] - dropped))]
    return kept


def copied(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy of the array, contiguous in C order."""
    return np.array(array, order="C")
