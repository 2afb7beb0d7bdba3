"""The codes that calibration found for a matrix: kept in files until the graph is written and PyTorch has been compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from ..passes.provenance import Columns, Piece
from ..passes.quantization import Bits
from ..passes.quantizers import Codes, Floats


@dataclasses.dataclass(frozen=True, slots=True)
class FoundCodes:
    """A matrix [out, in] as codes, in a folder of their own."""

    folder: Path
    bits: Bits
    block_size: int
    inputs: int
    smoothing: Floats | None = None
    """[in]: what the matrix was multiplied with before it was rounded, and its inputs are divided by; None: nothing."""

    @property
    def symmetric(self) -> bool:
        """Whether the codes have no zero points."""
        return not (self.folder / "zeros.npy").exists()

    @classmethod
    def save(cls, folder: Path, found: Codes, *, bits: Bits, block_size: int, inputs: int, smoothing: Floats | None) -> FoundCodes:
        """Write codes as `compensate` and `quantizers` give them."""
        folder.mkdir(parents=True)
        kinds = {"codes": np.uint8, "zeros": np.uint8, "scale_codes": np.int16, "row_scales": np.float32}
        for kind, dtype in kinds.items():
            array = getattr(found, kind)
            if array is not None:
                np.save(folder / f"{kind}.npy", array.astype(dtype))
        return cls(folder, bits, block_size, inputs, smoothing)

    def load(self, gains: Floats | None = None) -> Codes:
        """The codes again; `gains` [out] multiply the outputs."""
        arrays = {path.stem: np.load(path, mmap_mode="r") for path in self.folder.glob("*.npy")}
        rows = arrays["row_scales"] if gains is None else arrays["row_scales"] * gains[:, None]
        scale_codes = arrays["scale_codes"].astype(np.float32)
        zeros = arrays["zeros"].astype(np.float32) if "zeros" in arrays else None
        return Codes(arrays["codes"], scale_codes * rows, zeros, scale_codes, rows)

    def values(self, outputs: Columns | slice = slice(None)) -> Floats:
        """The matrix [out, in] that the codes stand for, or some outputs of it."""
        found = self.load()
        zeros = np.float32(1 << (self.bits - 1)) if found.zeros is None else found.zeros[outputs]
        values = (found.codes[:, outputs] - zeros) * found.scales[outputs]
        rows: Floats = values.transpose(1, 2, 0).reshape(values.shape[1], -1)[:, : self.inputs]
        return rows if self.smoothing is None else rows / self.smoothing


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Restored:
    """Gives a parameter the values of its codes: what `Rounding` is for a matrix that is rounded by itself."""

    found: FoundCodes
    rows: Columns
    """Outputs of the matrix that are the parameter's."""
    outputs: Columns | slice
    """Which of the parameter's outputs they are."""
    inputs_first: bool
    """The parameter is [in, out]."""

    def __call__(self, parameter: Tensor) -> None:
        """Set a float32 parameter's numbers in place."""
        numbers = parameter.numpy()
        values = self.found.values(self.rows)
        if self.inputs_first:
            numbers[:, self.outputs] = values.T
        else:
            numbers[self.outputs] = values


def restored(found: FoundCodes, pieces: Sequence[Piece], turned: dict[str, bool]) -> dict[str, Restored]:
    """What gives each parameter of a matrix its values; `turned`: whether that parameter is [in, out]."""
    rows: dict[str, list[Columns]] = {}
    outputs: dict[str, list[Columns]] = {}
    start = 0
    count = np.load(found.folder / "row_scales.npy", mmap_mode="r").shape[0]
    for piece in pieces:
        own = np.arange(count) if piece.outputs is None else piece.outputs
        rows.setdefault(piece.name, []).append(np.arange(start, start + len(own)))
        outputs.setdefault(piece.name, []).append(own)
        start += len(own)
    return {name: Restored(found, np.concatenate(each), np.concatenate(outputs[name]), turned[name]) for name, each in rows.items()}
