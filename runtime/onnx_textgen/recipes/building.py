"""Rebuilds a package from its recipe and the weights that it was exported from, in parts, and compares it with its manifest."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..errors import PackageError
from ..files.replace import hidden, put_folder, sweep
from ..files.text_files import readable
from ..package.integrity import check_hash, check_list, file_record
from ..package.manifest import MANIFEST, FileRecord
from ..package.reading import has_manifest, read_manifest
from .pieces import bytes_of
from .recipe import Origin, Part, Recipe, read_recipe
from .sources import Bytes, WeightsFile

MOST_GAP = 1 << 16
"""Zeros between two parts, at most: files begin each tensor at a round place."""
LONGEST_BUILD_SECONDS = 3600.0


def build(recipe: Path, source: Path, folder: Path, *, force: bool = False) -> Path:
    """Make the package of a recipe in `folder`, from the file that it names as its source.

    force: replace a package that is there. Raises `PackageError`, and leaves nothing, for another source, for a recipe that cannot
    be read, or whose package is not the one that its manifest describes.
    """
    if folder.exists() and not (force and has_manifest(folder)):
        raise PackageError(f"{folder} exists; give another folder" + ("" if force or not has_manifest(folder) else ", or --force"))
    opened = read_recipe(recipe)
    check_origin(source, opened.origin)
    weights = WeightsFile(source)
    folder.parent.mkdir(parents=True, exist_ok=True)
    sweep(folder, older_than=LONGEST_BUILD_SECONDS)
    partial = hidden(folder, "partial")
    try:
        partial.mkdir()
        write_package(opened, weights, partial)
        put_folder(partial, folder)
    except OSError as error:
        raise PackageError(f"cannot write {folder}: {error.strerror or error}; give another folder, or free some space") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def check_origin(source: Path, origin: Origin) -> None:
    """Raise `PackageError` if a file is not the one that a recipe is for."""
    with readable(source):
        is_same = source.is_file() and source.stat().st_size == origin.size and file_record(source).sha256 == origin.sha256
    if not is_same:
        where = f", {origin.found:.200}" if origin.found else ""
        raise PackageError(f"{source} is not the file that the recipe is for ({origin.name:.120}, {origin.size:,} bytes{where})")


def write_package(recipe: Recipe, weights: WeightsFile, folder: Path) -> None:
    """Write all files, and compare each with the manifest."""
    for name, content in recipe.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    manifest = read_manifest(folder)
    for name, parts in recipe.weights.items():
        expected = manifest.files.get(name)
        if expected is None:
            raise PackageError(f"the recipe makes {name}, which its manifest does not list; fetch it again")
        (folder / name).parent.mkdir(exist_ok=True)
        write_weights(recipe, weights, parts, folder / name, expected)
    check_list(folder, manifest)
    for name in recipe.files:
        if name != MANIFEST and name in manifest.files:
            check_hash(folder / name, manifest.files[name])


def write_weights(recipe: Recipe, weights: WeightsFile, parts: Sequence[Part], path: Path, expected: FileRecord) -> None:
    """Write a weights file; raises `PackageError` if it would be longer than its manifest says, or another."""
    digest, written = hashlib.sha256(), 0
    with path.open("wb") as file:

        def put(data: bytes | memoryview) -> None:
            nonlocal written
            written += len(data)
            if written > expected.size:
                raise PackageError(f"the recipe makes more of {path.name} than its manifest says; fetch it again")
            digest.update(data)
            file.write(data)

        for part in parts:
            if not 0 <= part.at - written <= MOST_GAP:
                raise PackageError(f"the parts of {path.name} overlap or leave gaps in the recipe; fetch it again")
            put(bytes(part.at - written))
            for chunk in made(recipe, weights, part):
                put(chunk.data)
        put(bytes(min(expected.size - written, MOST_GAP)))
    if digest.hexdigest() != expected.sha256:
        raise PackageError(f"what the recipe makes of {path.name} is not what its manifest says; fetch the recipe again")


def made(recipe: Recipe, weights: WeightsFile, part: Part) -> Iterator[Bytes]:
    """The bytes of a part, in chunks."""
    if not part.pieces:
        yield recipe.literals[slice(*part.literals)]
        return
    differences, at = recipe.differences(part), 0
    for chunk in bytes_of(weights, part.pieces, is_transposed=part.is_transposed):
        first, last = np.searchsorted(differences["at"], [at, at + len(chunk)])
        if last > first:
            chunk = chunk.copy()  # noqa: PLW2901 - it may be the source's memory
            chunk[differences["at"][first:last] - at] = differences["byte"][first:last]
        at += len(chunk)
        yield chunk
