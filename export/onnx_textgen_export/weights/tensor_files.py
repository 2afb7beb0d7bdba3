"""A checkpoint folder's tensors by name, read one at a time from safetensors files, or from pickles if allowed."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from onnx_textgen.errors import first_line
from onnx_textgen.options.checks import shown
from onnx_textgen.package.hf_settings import read_json

from ..errors import ExportError

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MOST_INDEX_BYTES = 64 * 2**20
"""A model with hundreds of experts has about a hundred thousand tensors."""
MOST_NAME_CHARACTERS = 200
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class TensorFiles:
    """Names and tensors of one checkpoint."""

    def __init__(self, folder: Path, *, allow_pickle: bool = False) -> None:
        """Open the folder's files; raises `ExportError` if there are none, or only pickles without `allow_pickle`."""
        self.where: dict[str, Any] = {}
        """Name -> the open file that holds the tensor, or the tensor itself, mapped from disk."""
        if names := safetensors_files(folder):
            self.open_safetensors(folder, names)
        else:
            self.open_pickles(folder, allow_pickle=allow_pickle)

    def open_safetensors(self, folder: Path, names: Iterable[str]) -> None:
        """Open safetensors files with pread: mapped pages would count as this process's memory."""
        for name in names:
            path = folder / name
            try:
                file: Any = safe_open(path, framework="pt", backend="pread")
            except (OSError, SafetensorError) as error:
                raise ExportError(f"{path} cannot be opened: {first_line(error)}; copy the checkpoint again") from error
            self.where |= dict.fromkeys(file.keys(), file)

    def open_pickles(self, folder: Path, *, allow_pickle: bool) -> None:
        """Map pickles from disk, tensors only."""
        pickles = sorted(path for path in folder.iterdir() if path.suffix in PICKLES and path.stem != "training_args")
        if not pickles:
            raise ExportError(f"{folder} holds no weights; give a folder with *.safetensors files")
        if not allow_pickle:
            raise ExportError(
                f"{folder} holds only {pickles[0].name}, a pickle, which can run code when opened; save it again with "
                "model.save_pretrained(DIR), or add --allow-pickle to read tensors from it and nothing else"
            )
        for path in pickles:
            try:
                found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except (OSError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
                raise ExportError(f"{path} cannot be opened as plain tensors: {first_line(error)}") from error
            if not isinstance(found, dict):
                raise ExportError(f"{path} holds no tensors by name but {type(found).__name__}; save the checkpoint again")
            self.where |= {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}

    def names(self) -> list[str]:
        """Every tensor's name."""
        return list(self.where)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        found = self.where[name]
        return tuple(found.shape if isinstance(found, Tensor) else found.get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        """One tensor in its stored type."""
        found = self.where[name]
        if isinstance(found, Tensor):
            return found
        try:
            tensor: Tensor = found.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ExportError(f"the checkpoint's {name} cannot be read: {first_line(error)}; copy the checkpoint again") from error
        return tensor


def safetensors_files(folder: Path) -> list[str]:
    """The files that an index names, else the one with the usual name, else every safetensors file of the folder."""
    indexed = read_json(folder / INDEX, most=MOST_INDEX_BYTES).get("weight_map")
    if not isinstance(indexed, dict):
        return [WHOLE] if (folder / WHOLE).is_file() else sorted(path.name for path in folder.glob("*.safetensors"))
    names = {name if isinstance(name, str) else shown(name) for name in indexed.values()}
    for name in sorted(names):
        if Path(name).name != name or len(name) > MOST_NAME_CHARACTERS or not (folder / name).is_file():
            raise ExportError(f"{folder / INDEX} names {shown(name)[1:-1]}, which is not there; copy the checkpoint again")
    return sorted(names)
