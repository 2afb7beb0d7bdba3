"""What every cache can do, whatever the graph carries and wherever it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..backends.onnxruntime_session import OrtValue
from ..backends.protocol import Run
from ..backends.signature import CacheTensor
from .recurrent_states import States
from .snapshot import Arrays

Tensors = dict[str, OrtValue]
"""Keys and values by the name of the graph's past input."""
EVERY = slice(None)


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
