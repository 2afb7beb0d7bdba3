"""Makes the recipe of a package: how each part of its weights files follows from the file that it was exported from.

Nothing of the export is needed for that: every step is tried on every tensor of the source whose first row begins as a part does,
and what fits best is taken. Few other bytes, such as the codes of a block that is all zeros, go with the recipe.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_textgen.files.replace import replaced_file
from onnx_textgen.package.integrity import check_files, file_record
from onnx_textgen.package.manifest import MANIFEST, weights_files
from onnx_textgen.package.reading import read_manifest
from onnx_textgen.recipes.pieces import bytes_of
from onnx_textgen.recipes.recipe import DIFFERENCES, Origin, Part, Piece, Recipe, write_recipe
from onnx_textgen.recipes.sources import Bytes, WeightsFile
from onnx_textgen.recipes.steps import steps_of

from ..errors import ExportError

KEY = 32
"""Bytes of a part by which the tensors of the source are looked up."""
MOST_DIFFERENT = 0.01
"""Share of a piece's bytes that may differ."""
MOST_LITERAL_BYTES = 4 * 2**20
"""Of a recipe, before they are packed."""


def make_recipe(folder: Path, source: Path, path: Path, *, found: str = "") -> int:
    """Write the recipe by which `folder` is rebuilt from the file `source`; returns its bytes. `found`: where that can be had.

    Raises `ExportError` if too much of the weights does not follow from the source by the steps that recipes have.
    """
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    maker = Maker(WeightsFile(source))
    weights = {name: tuple(maker.parts(folder, name)) for name in weights_files(manifest)}
    if maker.literal_bytes > MOST_LITERAL_BYTES:
        raise ExportError(
            f"{maker.literal_bytes / 1e6:,.1f} MB of {folder} do not follow from {source.name} by the steps that recipes have, so "
            "there is no recipe; export as stored, in fp32 or in fp16"
        )
    files = {name: (folder / name).read_bytes() for name in (MANIFEST, *manifest.files) if name not in weights}
    record = file_record(source)
    origin = Origin(source.name, record.size, record.sha256, found)
    with replaced_file(path) as partial:
        write_recipe(partial, Recipe(origin, weights, np.concatenate([*maker.literals, np.empty(0, np.uint8)]), files))
    return path.stat().st_size


@dataclasses.dataclass
class Maker:
    """Finds what parts of weights files are made of."""

    source: WeightsFile
    literals: list[Bytes] = dataclasses.field(default_factory=list)
    literal_bytes: int = 0
    known: Mapping[bytes, list[Piece]] = dataclasses.field(init=False)
    """By the bytes that a piece begins with."""

    def __post_init__(self) -> None:
        self.known = dict[bytes, list[Piece]]()
        for name, stored in self.source.tensors.items():
            first = self.source.rows(name)[:1]
            for step, compute in steps_of(stored.kind).items():
                key = np.ascontiguousarray(compute(first, stored.kind)).tobytes()[:KEY]
                self.known.setdefault(key, []).append(Piece(name, step))

    def parts(self, folder: Path, name: str) -> Iterator[Part]:
        """The parts of a weights file, in order of place."""
        content = np.memmap(folder / name, np.uint8, "r")
        for start, tensor in stored_tensors(folder, name):
            yield self.part(start, content[start : start + tensor.nbytes], tensor)

    def part(self, start: int, content: Bytes, tensor: ir.ExternalTensor) -> Part:
        """One tensor of a weights file: pieces, the transpose of pieces, or the bytes themselves."""
        pieces, different = self.pieces(content)
        if pieces:
            return Part(start, pieces, self.literal(different))
        if len(tensor.shape) == 2 and tensor.dtype.itemsize in (2, 4):
            matrix = content.view(f"V{int(tensor.dtype.itemsize)}").reshape(tensor.shape.numpy())
            pieces, different = self.pieces(np.ascontiguousarray(matrix.T).reshape(-1).view(np.uint8))
            if pieces and not len(different):
                return Part(start, pieces, self.literal(different), is_transposed=True)
        return Part(start, (), self.literal(np.asarray(content)))

    def pieces(self, content: Bytes) -> tuple[tuple[Piece, ...], Bytes]:
        """The pieces that these bytes are, and how they differ; no pieces if not all of them are found."""
        pieces, different, at = list[Piece](), [np.empty(0, np.uint8)], 0
        while at < len(content):
            best = min(self.candidates(content[at:]), key=lambda each: len(each[1]), default=None)
            if best is None:
                return (), different[0]
            piece, places, length = best
            found = np.empty(len(places), DIFFERENCES)
            found["at"], found["byte"] = places + at, content[at + places]
            pieces.append(piece)
            different.append(found.view(np.uint8))
            at += length
        return tuple(pieces), np.concatenate(different)

    def candidates(self, content: Bytes) -> Iterator[tuple[Piece, np.ndarray, int]]:
        """Pieces that the content begins with, where they differ from it, and their lengths."""
        for length in {len(key) for key in self.known}:
            for piece in self.known.get(content[:length].tobytes(), ()):
                yield from self.compared(piece, content)

    def compared(self, piece: Piece, content: Bytes) -> Iterator[tuple[Piece, np.ndarray, int]]:
        """The piece in each order that its rows can have, if the content is nearly that."""
        rows = self.source.tensors[piece.tensor].rows
        for heads in (0, *(heads for heads in self.source.heads if rows % (2 * heads) == 0)):
            ordered = dataclasses.replace(piece, heads=heads)
            made = np.concatenate(list(bytes_of(self.source, [ordered])))
            if len(made) > len(content):
                return
            places = np.flatnonzero(made != content[: len(made)])
            if len(places) <= MOST_DIFFERENT * len(made):
                yield ordered, places, len(made)
                if not len(places):
                    return

    def literal(self, content: Bytes) -> tuple[int, int]:
        """Keep bytes; returns their start and end."""
        start = self.literal_bytes
        self.literals.append(content)
        self.literal_bytes += len(content)
        return start, self.literal_bytes


def stored_tensors(folder: Path, name: str) -> list[tuple[int, ir.ExternalTensor]]:
    """The tensors of a weights file and where they begin, of all graphs that read it; of those over the same bytes the first."""
    found = dict[int, ir.ExternalTensor]()
    for graph in sorted([*folder.glob("*.onnx"), *folder.glob("*/*.onnx")]):
        for value in ir.load(graph).graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and (graph.parent / tensor.location).resolve() == (folder / name).resolve():
                found.setdefault(tensor.offset or 0, tensor)
    ordered = sorted(found.items())
    if any(start + tensor.nbytes > after for (start, tensor), (after, _) in itertools.pairwise(ordered)):
        raise ExportError(f"{name} has tensors that overlap, so it has no recipe")
    return ordered
