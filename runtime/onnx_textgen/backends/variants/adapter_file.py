"""The file of a LoRA adapter, in ONNX Runtime's own format: two narrow matrices for each parameter that the adapter changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...errors import PackageError, first_line
from ..onnxruntime_session import AdapterFormat, OrtValue

NARROW, WIDE = ".lora_A", ".lora_B"
"""Endings of the names of the two matrices, as PEFT has them."""
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """Change of a parameter by an adapter: the product of two narrow matrices, the adapter's scale included."""

    narrow: npt.NDArray[np.float32]
    """[in, rank]"""
    wide: npt.NDArray[np.float32]
    """[rank, out]"""

    @property
    def rank(self) -> int:
        """The rank of the product."""
        return int(self.narrow.shape[1])


Changes = Mapping[str, LowRank]
"""By the name of a parameter in the module."""


def write_adapter(path: Path, changes: Changes) -> None:
    """Write the file; raises `PackageError` if that fails."""
    file = AdapterFormat()
    file.set_adapter_version(1)
    file.set_model_version(FORMAT_VERSION)
    arrays = {
        name + ending: np.ascontiguousarray(array, np.float32)
        for name, change in changes.items()
        for ending, array in ((NARROW, change.narrow), (WIDE, change.wide))
    }
    file.set_parameters({name: OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()})
    try:
        file.export_adapter(str(path))
    except RuntimeError as error:  # ONNX Runtime's own, also for a full disk
        raise PackageError(f"{path} cannot be written ({first_line(error)}); free some space") from error


def read_adapter(path: Path) -> dict[str, LowRank]:
    """Read the file; raises `PackageError` for another file, a damaged one, and numbers that are not finite."""
    try:
        file = AdapterFormat.read_adapter(str(path))  # its end releases the memory of its arrays, so they are copied
        arrays = {str(name): np.array(value.numpy()) for name, value in file.get_parameters().items()}
    except Exception as error:  # ONNX Runtime raises its own, and UnicodeDecodeError for a damaged name
        raise PackageError(f"{path.name} is no adapter, or is damaged ({first_line(error)}); add the adapter again") from error
    changes = dict[str, LowRank]()
    for name in sorted({name.removesuffix(NARROW).removesuffix(WIDE) for name in arrays}):
        narrow, wide = (arrays.pop(name + ending, None) for ending in (NARROW, WIDE))
        if narrow is None or wide is None or not are_a_pair(narrow, wide):
            raise PackageError(f"{path.name} has no two finite matrices of one rank for {name!r:.80}; add the adapter again")
        changes[name] = LowRank(narrow, wide)
    if arrays or not changes:
        raise PackageError(f"{path.name} changes nothing, or holds other things too; add the adapter again")
    return changes


def are_a_pair(narrow: npt.NDArray[np.generic], wide: npt.NDArray[np.generic]) -> bool:
    """Return whether two arrays are finite float32 matrices [in, rank] and [rank, out]."""
    fits = all(each.ndim == 2 and each.dtype == np.float32 for each in (narrow, wide)) and narrow.shape[1:] == wide.shape[:1]
    return fits and bool(narrow.size and wide.size and np.isfinite(narrow).all() and np.isfinite(wide).all())
