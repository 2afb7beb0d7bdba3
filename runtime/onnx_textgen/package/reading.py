"""Reads a folder's manifest."""

from __future__ import annotations

from pathlib import Path

from ..errors import PackageError
from ..files.text_files import read_json, readable
from .manifest import MANIFEST, Manifest, manifest_from_json
from .misnamed import why_no_package

MOST_MANIFEST_BYTES = 4 * 2**20


def has_manifest(folder: Path) -> bool:
    """Return whether a folder has a manifest; raises `PackageError` if it is not a regular file: every check depends on it."""
    path = folder / MANIFEST
    with readable(folder):
        if (is_file := path.is_file()) or not (path.exists() or path.is_symlink()):
            return is_file
    raise PackageError(f"{path} is not a file, so nothing in the folder can be checked; export or copy the model again")


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of `folder` and check it; the files that it lists are not checked.

    Raises `PackageError` for a wrong manifest; if there is none, the error says what the folder is instead.
    """
    path = folder / MANIFEST
    with readable(folder):
        if not has_manifest(folder):
            raise PackageError(why_no_package(folder))
    return manifest_from_json(read_json(path, most=MOST_MANIFEST_BYTES))
