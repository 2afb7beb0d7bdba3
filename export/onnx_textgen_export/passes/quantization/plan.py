"""Calibration's choices for a graph's matrices: codes in files, until the graph is written and compared with PyTorch."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from ..graph.provenance import Columns
from .options import Bits
from .quantizers import Codes, Floats
from .split_head import Split

Changes = Mapping[str, Callable[[Tensor], None]]
"""By the name of a parameter: the change that gives it the values of its codes."""
SMOOTHING, LOSS = "smoothing", "loss"
"""Files of a folder of codes: `smoothing.npy`, the divisors of inputs, and `loss`."""


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill that becomes `folder` when the block ends, so that a killed export leaves none that is half full."""
    partial = folder.with_name(f"{folder.name}-partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


@dataclasses.dataclass(frozen=True, slots=True)
class FoundCodes:
    """A matrix [out, in] as codes, in a folder."""

    folder: Path
    bits: Bits
    block_size: int
    inputs: int
    smoothing: Floats | None = None
    """[in]: factors of the matrix before it was rounded, and divisors of its inputs; None: not smoothed."""
    loss: float = 0.0
    """Estimated contribution to the divergence from the unrounded model, in nats per token."""

    @property
    def symmetric(self) -> bool:
        """Whether the codes have no zero points."""
        return not (self.folder / "zeros.npy").exists()

    @classmethod
    def save(
        cls, folder: Path, found: Codes, *, bits: Bits, block_size: int, inputs: int, smoothing: Floats | None, loss: float
    ) -> FoundCodes:
        """Write codes to a folder, as `compensate` and `quantizers` return them."""
        kinds = {"codes": np.uint8, "zeros": np.uint8, "scale_codes": np.int16, "row_scales": np.float32}
        arrays = {kind: (getattr(found, kind), dtype) for kind, dtype in kinds.items()} | {SMOOTHING: (smoothing, np.float32)}
        with whole_folder(folder) as partial:
            for name, (array, dtype) in arrays.items():
                if array is not None:
                    np.save(partial / f"{name}.npy", array.astype(dtype))
            (partial / LOSS).write_text(repr(loss), encoding="utf-8")
        return cls(folder, bits, block_size, inputs, smoothing, loss)

    @classmethod
    def saved(cls, folder: Path, *, bits: Bits, block_size: int, inputs: int) -> FoundCodes:
        """Return the codes that `save` wrote to a folder."""
        path, loss = folder / f"{SMOOTHING}.npy", float((folder / LOSS).read_text(encoding="utf-8"))
        return cls(folder, bits, block_size, inputs, np.load(path) if path.exists() else None, loss)

    @classmethod
    def joined(cls, parts: Sequence[FoundCodes]) -> FoundCodes:
        """The concatenated codes of groups of outputs, all in one form and without smoothing."""
        folder = parts[0].folder.with_name(f"{parts[0].folder.name}-joined")
        if not folder.exists():
            with whole_folder(folder) as partial:
                for path in parts[0].folder.glob("*.npy"):
                    arrays = [np.load(each.folder / path.name, mmap_mode="r") for each in parts]
                    np.save(partial / path.name, np.concatenate(arrays, axis=1 if path.stem == "codes" else 0))
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


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Codes for a graph's matrices by the names of their initializers."""

    found: dict[str, FoundCodes]
    gains: dict[str, Floats]
    """[out]: factors of a matrix's outputs, whose reader has smoothed inputs."""
    changes: dict[str, Changes]
    """By matrix; the parts of one matrix share them."""
    splits: list[Split]
    """Matrices whose parts have different forms."""
