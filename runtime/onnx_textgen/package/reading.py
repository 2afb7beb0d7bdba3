"""Reads a folder's manifest, and says what a folder is that has none."""

from __future__ import annotations

from pathlib import Path

from ..errors import PackageError
from ..files.text_files import read_json, readable
from .manifest import MANIFEST, Manifest, manifest_from_json
from .misnamed import why_no_package

MOST_MANIFEST_BYTES = 4 * 2**20


def has_manifest(folder: Path) -> bool:
    """Whether a folder has one; raises `PackageError` where no file stands in its place, as every check hangs on it."""
    path = folder / MANIFEST
    with readable(folder):
        if (is_there := path.is_file()) or not (path.exists() or path.is_symlink()):
            return is_there
    raise PackageError(f"{path} is not a file, so nothing in the folder can be checked; export or copy the model again")


def read_manifest(folder: Path) -> Manifest:
    """Read `folder`'s manifest without opening any other file."""
    path = folder / MANIFEST
    with readable(folder):
        if not has_manifest(folder):
            raise PackageError(why_no_package(folder))
    return manifest_from_json(read_json(path, most=MOST_MANIFEST_BYTES))
