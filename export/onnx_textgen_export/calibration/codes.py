"""The codes that calibration found for a matrix: kept in files until the graph is written and compared with PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from ..passes.graph.provenance import Columns
from ..passes.quantization.options import Bits
from ..passes.quantization.quantizers import Codes, Floats
from .matrices import Matrix

OUTPUTS_AT_A_TIME = 8192
"""Bounds the memory that an output layer takes."""


@dataclasses.dataclass(frozen=True, slots=True)
class FoundCodes:
    """A matrix [out, in] as codes, in a folder."""

    folder: Path
    bits: Bits
    block_size: int
    inputs: int
    smoothing: Floats | None = None
    """[in]: factors of the matrix before it was rounded, and divisors of its inputs; None: not smoothed."""

    @property
    def symmetric(self) -> bool:
        """Whether the codes have no zero points."""
        return not (self.folder / "zeros.npy").exists()

    @classmethod
    def save(cls, folder: Path, found: Codes, *, bits: Bits, block_size: int, inputs: int, smoothing: Floats | None) -> FoundCodes:
        """Write codes to a folder, as `compensate` and `quantizers` return them."""
        folder.mkdir(parents=True)
        kinds = {"codes": np.uint8, "zeros": np.uint8, "scale_codes": np.int16, "row_scales": np.float32}
        for kind, dtype in kinds.items():
            array = getattr(found, kind)
            if array is not None:
                np.save(folder / f"{kind}.npy", array.astype(dtype))
        return cls(folder, bits, block_size, inputs, smoothing)

    @classmethod
    def joined(cls, parts: Sequence[FoundCodes]) -> FoundCodes:
        """The concatenated codes of groups of outputs, all in one form and without smoothing."""
        folder = parts[0].folder.with_name(f"{parts[0].folder.name}-joined")
        if not folder.exists():
            folder.mkdir()
            for path in parts[0].folder.glob("*.npy"):
                arrays = [np.load(each.folder / path.name, mmap_mode="r") for each in parts]
                np.save(folder / path.name, np.concatenate(arrays, axis=1 if path.stem == "codes" else 0))
        return dataclasses.replace(parts[0], folder=folder)

    def load(self, gains: Floats | None = None) -> Codes:
        """Read the codes; `gains` [out] multiply the outputs."""
        arrays = {path.stem: np.load(path, mmap_mode="r") for path in self.folder.glob("*.npy")}
        rows = arrays["row_scales"] if gains is None else arrays["row_scales"] * gains[:, None]
        scale_codes = arrays["scale_codes"].astype(np.float32)
        zeros = arrays["zeros"].astype(np.float32) if "zeros" in arrays else None
        return Codes(arrays["codes"], scale_codes * rows, zeros, scale_codes, rows)

    def values(self, outputs: Columns) -> Floats:
        """Some outputs of the matrix [out, in] that the codes represent."""
        found = self.load()
        zeros = None if found.zeros is None else found.zeros[outputs]
        rows = Codes(found.codes[:, outputs], found.scales[outputs], zeros).values(self.bits, self.inputs)
        return rows if self.smoothing is None else rows / self.smoothing


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
