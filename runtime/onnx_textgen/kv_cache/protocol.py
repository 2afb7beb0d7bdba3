"""The methods of every cache, whatever tensors the graph carries and wherever they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..backends.onnxruntime_session import OrtValue
from ..backends.protocol import Run
from ..backends.signature import CacheTensor
from .recurrent_states import States
from .snapshot import ArrayMapping, Arrays
from .windows import Windows

Tensors = dict[str, OrtValue]
"""Keys and values by the name of the graph's past input."""
EVERY = slice(None)


class Cache(Protocol):
    """Keys, values and recurrent states of `rows` rows."""

    lengths: list[int]
    """Tokens of each row."""
    tensors: tuple[CacheTensor, ...]
    """All tensors that the graph carries from run to run, states included."""
    states: States
    windows: Windows

    @property
    def capacity(self) -> int:
        """Tokens of a row that the tensors have memory for now."""
        ...

    def reserve(self, row: int, tokens: int) -> None:
        """Allocate memory for `tokens` tokens of a row, if this cache allocates ahead."""
        ...

    def begin(self, rows: range, new: int, active: Sequence[int] = ()) -> Run:
        """Prepare a run over one row, or over the first rows: bind their past, and memory for `new` more tokens of each.

        `active`: for each of the rows, nonzero if it will advance; empty: all will.
        """
        ...

    def end(self, rows: range, advanced: Sequence[int]) -> None:
        """Commit the run; `advanced`: the tokens by which each of the rows grew."""
        ...

    def mask(self, rows: range, new: int) -> npt.NDArray[np.int64]:
        """The attention mask [rows, past + new] of the run that `begin` prepared; if `new` is 1, columns of zeros may follow."""
        ...

    def rewind(self, row: int, length: int) -> None:
        """Remove all but the first `length` tokens of a row, which `nearest` of states and windows must return."""
        ...

    def copy_row(self, source: int, target: int) -> None:
        """Make row `target` hold a copy of row `source`."""
        ...

    def take(self, row: int, length: int) -> Arrays:
        """Copy the keys and values of a row's first `length` tokens; of windows, those needed to continue there."""
        ...

    def put(self, row: int, arrays: ArrayMapping, length: int) -> None:
        """Make a row hold the first `length` tokens of arrays from `take`, of this or another cache; states are not changed.

        Arrays of windows end with token `length`.
        """
        ...
