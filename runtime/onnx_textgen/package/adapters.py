"""Reads the LoRA adapters of a model folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..backends.variants.adapter_file import Changes, read_adapter
from .integrity import check_hash
from .manifest import Manifest, adapter_file


def read_listed_adapters(folder: Path, manifest: Manifest) -> dict[str, Changes]:
    """Read all adapters of a manifest after checking their hashes; raises `PackageError`."""
    for name in manifest.adapters:
        check_hash(folder / adapter_file(name), manifest.files[adapter_file(name)])
    return read_adapters(folder, manifest.adapters)


def read_adapters(folder: Path, names: Iterable[str]) -> dict[str, Changes]:
    """Read the files of these adapters; raises `PackageError` for a file that holds none."""
    return {name: read_adapter(folder / adapter_file(name)) for name in names}
