"""A recipe as a file: a ZIP of a package's small files, what its weights are made of, and the numbers that come from no source.

A recipe is untrusted: its files are those that a model folder may have, each as large as the manifest says, and its steps are
names. What it makes is compared with the sha256 of its manifest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import PackageError, first_line
from ..files.text_files import parse_json
from ..package.manifest import MANIFEST, is_allowed
from .sources import Bytes

RECIPE, LITERALS = "recipe.json", "literals.bin"
VERSION = 1
MOST_BYTES, MOST_PARTS = 256 * 2**20, 1_000_000
"""Of all files of a recipe, unpacked; of all pieces of its weights."""
FILE_NAME = re.compile(r"(?!\.+$)[^/\\:*?\[\x00-\x1f]{1,200}")
"""Of the origin, which may be looked for next to the recipe: no path, and no pattern."""
BROKEN = (OSError, EOFError, ValueError, TypeError, KeyError, AttributeError, RecursionError, NotImplementedError, RuntimeError)
"""What a damaged ZIP, or JSON of another form, raises."""
DIFFERENCES = np.dtype([("at", "<u4"), ("byte", "u1")])


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one tensor of the source, after a step."""

    tensor: str
    step: str
    heads: int = 0
    """If not 0, the rows are brought from llama.cpp's rotary order into transformers', for this number of heads."""


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of a weights file: pieces one after the other, or literal bytes."""

    at: int
    """Where it begins; what lies between two parts is zeros."""
    pieces: tuple[Piece, ...]
    literals: tuple[int, int] = (0, 0)
    """Its bytes where it has no pieces, else its differences from them: start and end in the recipe's literals."""
    is_transposed: bool = False
    """Whether the pieces, one below the other, are a matrix whose transpose this is."""


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """The file that a package is made of."""

    name: str
    size: int
    sha256: str
    found: str = ""
    """Where it can be had."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """An open recipe."""

    origin: Origin
    weights: Mapping[str, Sequence[Part]]
    """By the name of the weights file in the package."""
    literals: Bytes
    files: Mapping[str, bytes]
    """The package's other files."""

    def differences(self, part: Part) -> npt.NDArray[np.void]:
        """Where a part differs from its pieces, ordered by place."""
        start, end = part.literals
        return self.literals[start:end].view(DIFFERENCES)


def write_recipe(path: Path, recipe: Recipe) -> None:
    """Write a recipe; the same one gives the same bytes."""
    described = {
        "version": VERSION,
        "origin": dataclasses.asdict(recipe.origin),
        "weights": {
            name: [
                [part.at, [[each.tensor, each.step, each.heads] for each in part.pieces], *part.literals, int(part.is_transposed)]
                for part in parts
            ]
            for name, parts in recipe.weights.items()
        },
    }
    content = {RECIPE: json.dumps(described, separators=(",", ":")).encode(), LITERALS: recipe.literals.tobytes(), **recipe.files}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, data in sorted(content.items()):
            packed.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, compresslevel=9)


def read_recipe(path: Path) -> Recipe:
    """Read a recipe; raises `PackageError` for one that is damaged, or that asks for more than a package may have."""
    with reading(path), zipfile.ZipFile(path) as packed:
        entries = {entry.filename: entry for entry in packed.infolist()}
        if len(entries) != len(packed.infolist()) or sum(entry.file_size for entry in entries.values()) > MOST_BYTES:
            raise ValueError("it has files twice, or more than a recipe may have")
        for name, entry in entries.items():
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError("it is packed in another way")
            if name not in (RECIPE, LITERALS, MANIFEST) and not is_allowed(name):
                raise ValueError(f"{name!r:.80} is no file of a model folder")
        content = {name: read_entry(packed, entry) for name, entry in entries.items()}
        described, literals = parse_json(content.pop(RECIPE).decode("utf-8")), np.frombuffer(content.pop(LITERALS), np.uint8)
        if described["version"] != VERSION:
            raise ValueError("another version of onnx-textgen wrote it")
        origin = Origin(**described["origin"])
        if not (isinstance(origin.size, int) and all(isinstance(each, str) for each in (origin.name, origin.sha256, origin.found))):
            raise ValueError("its origin is not described")
        if not FILE_NAME.fullmatch(origin.name):
            raise ValueError("its origin is no name of a file")
        weights = {name: read_parts(parts, len(literals)) for name, parts in described["weights"].items()}
        if MANIFEST not in content or any(not is_allowed(name) or name in content for name in weights):
            raise ValueError("it has no manifest, or names files that no model folder has")
        return Recipe(origin, weights, literals, content)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what a damaged recipe raises into one line."""
    try:
        yield
    except (*BROKEN, zipfile.BadZipFile, zlib.error) as error:
        raise PackageError(f"{path} is no recipe that can be read ({first_line(error)}); fetch it again") from error


def read_entry(packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """A file of the ZIP, as large as it declares at most."""
    with packed.open(entry) as file:
        data = file.read(entry.file_size + 1)
    if len(data) != entry.file_size:
        raise ValueError(f"{entry.filename} is not as large as it declares")
    return data


def read_parts(given: Sequence[Any], literals: int) -> tuple[Part, ...]:
    """The parts of a weights file, ordered by place."""
    parts, before = list[Part](), 0
    if len(given) > MOST_PARTS:
        raise ValueError("more parts than any package has")
    for at, given_pieces, start, end, is_transposed in given:
        pieces = tuple(Piece(text(tensor), text(step), whole(heads)) for tensor, step, heads in given_pieces)
        part = Part(whole(at), pieces, (start, end), is_transposed=bool(whole(is_transposed)))
        if part.at < before or not 0 <= whole(start) <= whole(end) <= literals:
            raise ValueError("its parts are in disorder")
        if part.pieces and (end - start) % DIFFERENCES.itemsize:
            raise ValueError("half of a difference")
        before = part.at
        parts.append(part)
    return tuple(parts)


def whole(value: object) -> int:
    """A whole number that is not negative."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r:.40} is no place or count")
    return value


def text(value: object) -> str:
    """A text."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no name")
    return value
