"""Copies of a row's cache as plain arrays: to continue from in another row, to keep, to write to a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
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
    """The fewest tokens, but 0, that it can be cut to: layers with a window have forgotten what a shorter text needs."""
    exact_length: int | None = None
    """How many tokens, from the first, were fed as those of a prompt, to the last bit; None: all."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for arrays in (self.tensors, *self.states.values()) for array in arrays.values())

    def exact_part(self, length: int) -> int:
        """How many of the first `length` tokens are exact."""
        return length if self.exact_length is None else min(self.exact_length, length)

    def usable(self, length: int) -> int:
        """The longest part of the first `length` tokens that a decoder can continue from, in tokens."""
        length = min(length, len(self.token_ids))
        if self.states:
            length = max((held for held in self.states if held <= length), default=0)
        return length if length >= self.shortest else 0

    def beginning(self, length: int, tensors: Iterable[CacheTensor]) -> Snapshot:
        """The first `length` tokens, or as many of them as a decoder can continue from."""
        if (length := self.usable(length)) == len(self.token_ids):
            return self
        if not length:
            return Snapshot((), {}, origin=self.origin)
        states = {held: arrays for held, arrays in self.states.items() if held <= length}
        token_ids, arrays = self.token_ids[:length], self.cut(length, tensors)
        return dataclasses.replace(self, token_ids=token_ids, tensors=arrays, states=states, exact_length=self.exact_part(length))

    def cut(self, length: int, tensors: Iterable[CacheTensor]) -> ArrayMapping:
        """The arrays without the tokens after the first `length`."""
        dropped, found = len(self.token_ids) - length, dict[str, npt.NDArray[Any]]()
        if not dropped:
            return self.tensors
        for tensor in tensors:
            if tensor.length_axis is not None:
                array = self.tensors[tensor.past]
                found[tensor.past] = array[tensor.index(slice(None), slice(array.shape[tensor.length_axis] - dropped))]
        return found


def copied(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy of the array, contiguous in C order."""
    return np.array(array, order="C")
