"""A package whose weights are those of one tensor, and its recipe, made without an export."""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from onnx_textgen.package.integrity import file_record
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import MANIFEST, weights_files
from onnx_textgen.package.reading import read_manifest
from onnx_textgen.recipes.recipe import RECIPE, Origin, Part, Piece, Recipe, write_recipe


def write_safetensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> Path:
    """Write tensors, each a type, a shape and bytes."""
    header, at = {}, 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    packed = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(packed)) + packed + b"".join(data for _, _, data in tensors.values()))
    return path


def made_recipe(folder: Path) -> tuple[Path, Path, Path]:
    """The embedded model `tiny-transformer`, a source that holds its weights, and the recipe: package, source, recipe."""
    package = folder / "package"
    shutil.copytree(find_package("tiny-transformer"), package)
    manifest = read_manifest(package)
    (name,) = weights_files(manifest)
    data = (package / name).read_bytes()
    source = write_safetensors(folder / "source.safetensors", {"w": ("F16", (len(data) // 4, 2), data)})
    origin = Origin(source.name, source.stat().st_size, file_record(source).sha256)
    files = {each: (package / each).read_bytes() for each in (MANIFEST, *manifest.files) if each != name}
    recipe = folder / "tiny.recipe"
    write_recipe(recipe, Recipe(origin, {name: [Part(0, (Piece("w", "copy"),))]}, np.empty(0, np.uint8), files))
    return package, source, recipe


def changed(recipe: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> Path:
    """Write another recipe: `change` gets the description and the files."""
    with zipfile.ZipFile(recipe) as packed:
        content = {name: packed.read(name) for name in packed.namelist()}
    described = json.loads(content.pop(RECIPE))
    change(described, content)
    with zipfile.ZipFile(recipe, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in {RECIPE: json.dumps(described).encode(), **content}.items():
            packed.writestr(name, data)
    return recipe
