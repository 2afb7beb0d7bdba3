"""How a file stored a parameter that it holds quantised."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StoredForm:
    """The form of one parameter in its file; its numbers are those that the file's integers stand for."""

    name: str
    """As its makers call it: `Q4_1`, `GPTQ 4 bits`."""
    may_round: bool = False
    """Its numbers may be rounded again without being asked for, where no form of ours holds them."""
    order: npt.NDArray[np.int64] | None = None
    """The inputs in the order in which groups of them share a scale; None: the order of their numbers."""
    rows: Callable[[], npt.NDArray[np.uint8]] | None = None
    """Reads the file's bytes of each output [outputs, bytes], of a parameter of a GGUF file; None: only its numbers are known."""

    def without_rows(self) -> StoredForm:
        """The form of a parameter that is not as the file has it."""
        return dataclasses.replace(self, rows=None)
