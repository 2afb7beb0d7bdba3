"""Gives PyTorch's parameters the values of the codes that calibration found for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ..passes.graph.provenance import Columns
from ..passes.quantization.plan import FoundCodes
from .matrices import Matrix

OUTPUTS_AT_A_TIME = 8192
"""Bounds the memory that an output layer takes."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Restored:
    """Gives a parameter the values of its codes, as `Rounding` does for a matrix without calibration."""

    found: FoundCodes
    rows: Columns
    """Outputs of the matrix that come from the parameter."""
    outputs: Columns
    """The corresponding outputs of the parameter."""
    inputs_first: bool
    """The parameter is [in, out]."""

    def __call__(self, parameter: Tensor) -> None:
        """Set a float32 parameter's values in place, in slices of outputs."""
        numbers = parameter.numpy().T if self.inputs_first else parameter.numpy()
        for start in range(0, len(self.rows), OUTPUTS_AT_A_TIME):
            some = slice(start, start + OUTPUTS_AT_A_TIME)
            numbers[self.outputs[some]] = self.found.values(self.rows[some])


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class InTurn:
    """Gives a parameter the values of more than one set of codes, each for some of its outputs."""

    parts: Sequence[Restored]

    def __call__(self, parameter: Tensor) -> None:
        """Set a float32 parameter's values in place."""
        for each in self.parts:
            each(parameter)


def restored(found: FoundCodes, matrix: Matrix) -> dict[str, Restored]:
    """The changes that give each parameter of a matrix the values of its codes."""
    rows: dict[str, list[Columns]] = {}
    outputs: dict[str, list[Columns]] = {}
    start = 0
    for piece in matrix.pieces:
        own = np.arange(matrix.sizes[0]) if piece.outputs is None else piece.outputs
        rows.setdefault(piece.name, []).append(np.arange(start, start + len(own)))
        outputs.setdefault(piece.name, []).append(own)
        start += len(own)
    ends = {name: np.concatenate(each) for name, each in outputs.items()}
    return {name: Restored(found, np.concatenate(each), ends[name], matrix.transposed[name]) for name, each in rows.items()}
