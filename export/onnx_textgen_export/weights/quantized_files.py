"""The tensors of a quantised checkpoint: each stored matrix under the name that it has in the unquantised model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import ExportError, failing_as
from .quantization_schemes import SCHEMES, Scheme, Settings
from .tensor_files import TensorFiles


class QuantizedFiles:
    """A checkpoint's tensors, dequantised one at a time."""

    def __init__(self, files: TensorFiles, settings: Settings, is_transposed: Callable[[str], bool]) -> None:
        """settings: the checkpoint's `quantization_config`. is_transposed: whether the model has a weight as [in, out]."""
        self.files, self.settings, self.is_transposed = files, settings, is_transposed
        method = str(settings.get("quant_method", "a method that it does not name"))
        if method not in SCHEMES:
            raise ExportError(
                f"the checkpoint is quantised by {method}, which cannot be read; give the original checkpoint, or one "
                f"quantised by {', '.join(SCHEMES)}"
            )
        self.layers: dict[str, tuple[Scheme, list[str]]] = {}
        """By the matrix's name: how it is stored, and its tensors that are there."""
        every = set(files.names())
        for scheme in SCHEMES[method]:
            for stem in (name.removesuffix(scheme.marker) for name in every if name.endswith(f".{scheme.marker}")):
                parts = [part for part in scheme.beside if stem + part in every]
                self.layers.setdefault(f"{stem}weight", (scheme, parts))
        used = {name.removesuffix("weight") + part for name, (_, parts) in self.layers.items() for part in parts}
        self.plain = [name for name in files.names() if name not in used]

    def names(self) -> list[str]:
        """Every tensor's name, as in the unquantised model."""
        return [*self.layers, *self.plain]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """A tensor's shape; None for a matrix, whose shape is known when it is read."""
        return None if name in self.layers else self.files.shape(name)

    def read(self, name: str) -> Tensor:
        """One tensor; a matrix in float32."""
        if name not in self.layers:
            return self.files.read(name)
        scheme, _ = self.layers[name]
        with failing_as(f"{name} cannot be read as {scheme.name}", "; copy the checkpoint again"):
            found = scheme.decode(self.parts(name), self.settings)
        if not np.isfinite(found).all():
            raise ExportError(f"{name} has numbers that are not finite; the checkpoint is damaged, copy it again")
        return torch.from_numpy(np.ascontiguousarray(found.T if self.is_transposed(name) else found, np.float32))

    def order(self, name: str) -> npt.NDArray[np.int64] | None:
        """See `StoredForm.order`."""
        scheme, parts = self.layers[name]
        index = [part for part in parts if part.endswith("g_idx")]
        with failing_as(f"{name} cannot be read as {scheme.name}", "; copy the checkpoint again"):
            return scheme.order(self.parts(name, index)) if index else None

    def parts(self, name: str, chosen: list[str] | None = None) -> dict[str, Tensor]:
        """Tensors that store a matrix, by their own names."""
        _, parts = self.layers[name]
        stem = name.removesuffix("weight")
        return {part: self.files.read(stem + part) for part in (parts if chosen is None else chosen)}
