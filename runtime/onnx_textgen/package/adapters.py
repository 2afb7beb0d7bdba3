"""Reads the LoRA adapters of a model folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..backends.adapter_file import Changes, read_adapter
from .manifest import adapter_file


def read_adapters(folder: Path, names: Iterable[str]) -> dict[str, Changes]:
    """Read the files of these adapters; raises `PackageError` for a file that holds none."""
    return {name: read_adapter(folder / adapter_file(name)) for name in names}
