"""Reads pictures for a decoder: its image processor and its vision part, each a graph."""

from __future__ import annotations

import functools
import hashlib
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..backends.onnxruntime_session import OnnxRuntimeSession
from ..backends.protocol import ClosedGraph
from ..cancellation import UNCANCELLED, CancelScope
from ..encoders.encoder import run_once
from ..errors import ModelError, PackageError
from ..package.manifest import MOST_IMAGE_TOKENS, ImageRecord, TileText
from .image_rows import Grid, ImageRows, ReadImage, Rows, Unread
from .pictures import PICTURE, Pixels, read_picture

IMAGE_ROWS = "image_rows"
"""The output [tokens, width] of a vision part."""
TILE_GRID = "tile_grid"
"""The output [2] of a processor that cuts pictures: rows and columns of tiles, which are the first axis of its other outputs."""
Numbers = npt.NDArray[Any]


class ImageReader:
    """The two graphs that read pictures. Safe to use from several threads."""

    def __init__(
        self,
        processor: OnnxRuntimeSession,
        vision: OnnxRuntimeSession,
        record: ImageRecord,
        width: int,
        *,
        fetches: bool = False,
    ) -> None:
        """`width`: that the decoder takes; `fetches`: pictures at addresses of the web are read.

        Raises `PackageError` for graphs that do not fit each other, or the decoder.
        """
        self.processor, self.vision, self.record, self.fetches = processor, vision, record, fetches
        self.rows, self.lock = ImageRows(width, bidirectional=record.bidirectional), threading.Lock()
        self.preparing = threading.Lock()
        """Held while a picture is prepared: a large one takes much memory."""
        made, wanted = set(processor.outputs), set(vision.inputs) | ({TILE_GRID} if record.tiles else set())
        if set(processor.inputs) != {PICTURE} or made != wanted or IMAGE_ROWS not in vision.outputs:
            raise PackageError("the graphs that read pictures do not fit each other; export the model again")
        shape, _ = vision.outputs[IMAGE_ROWS]
        if shape != [*(shape[:2] if record.has_grid else [record.tile_tokens]), width]:
            taken = f"[down, across, {width}]" if record.has_grid else f"[{record.tile_tokens}, {width}]"
            raise PackageError(f"pictures become rows {shape}, and the decoder takes {taken}; export the model again")
        dynamic = sum(not isinstance(size, int) for sizes, _ in vision.inputs.values() for size in sizes)
        if dynamic != (len(("down", "across")) if record.has_grid else 0):
            raise PackageError(f"the vision part takes tensors with {dynamic} sizes that vary; export the model again")

    def close(self) -> None:
        """Release the graphs, and forget the pictures; any later use raises `ModelError`."""
        self.processor = self.vision = cast("OnnxRuntimeSession", ClosedGraph())
        self.rows.clear()

    def read(self, source: object) -> ReadImage:
        """Read a picture, unless it is known; its rows are computed when they are needed. Raises `ImageError` and `ModelError`."""
        return self.read_pixels(read_picture(source, fetches=self.fetches))

    def read_pixels(self, pixels: Pixels) -> ReadImage:
        """Read the pixels uint8 [height, width, 3] of a picture."""
        digest = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()
        if (known := self.rows.known(digest)) is not None:
            return known
        names = list(self.processor.outputs)
        with self.preparing:
            numbers = run_once(self.processor, names, {PICTURE: pixels}, UNCANCELLED, doing="prepared a picture")
        given = {name: np.asarray(array) for name, array in zip(names, numbers, strict=True)}
        grid = self.grid_of(given) if self.record.has_grid else None
        tiles = self.tiles_of(given) if self.record.tiles else None
        count = math.prod(grid) if grid else self.record.tile_tokens * (tiles.tiles if tiles else 1)
        if not 1 <= count <= MOST_IMAGE_TOKENS:
            raise ModelError(f"the picture has {count:,} rows, and from 1 to {MOST_IMAGE_TOKENS:,} are possible; take another")
        parts = [given] if tiles is None else [{name: each[tile] for name, each in given.items()} for tile in range(tiles.tiles)]
        waiting = Unread(count, functools.partial(self.compute, parts, count), sum(array.nbytes for array in given.values()))
        return self.rows.keep(ReadImage(digest, waiting, grid, self.record.row_break_ids, tiles))

    def grid_of(self, given: Mapping[str, Numbers]) -> Grid:
        """Tokens down and across, which are the dimensions that vary in what the vision part takes."""
        shapes = {name: shape for name, (shape, _) in self.vision.inputs.items()}
        height, width = (
            size
            for name, array in given.items()
            for size, named in zip(array.shape, shapes[name], strict=True)
            if not isinstance(named, int)
        )
        return height, width

    def tiles_of(self, given: dict[str, Numbers]) -> TileText:
        """How a picture was cut, which is taken out; raises `ModelError` for a way that the package does not know."""
        grid, counts = given.pop(TILE_GRID).ravel().tolist(), {len(array) for array in given.values()}
        for each in self.record.tiles:
            if [each.rows, each.columns] == grid and {each.tiles} == counts:
                return each
        raise ModelError(f"the package knows no text for a picture in tiles of {grid}; give one of another shape")

    def compute(self, parts: Sequence[Mapping[str, Numbers]], count: int, scope: CancelScope) -> Rows:
        """Compute the rows [count, width] of a picture by the vision part, which has one run for each tile."""
        made = list[Numbers]()
        for given in parts:
            with scope.holding(self.lock):  # one at a time: each run uses all threads
                made += run_once(self.vision, [IMAGE_ROWS], given, scope, doing="read a picture")
        found = np.concatenate([np.asarray(each, np.float32).reshape(-1, self.rows.width) for each in made])
        if found.size != count * self.rows.width:
            raise ModelError(f"a picture became {found.size // self.rows.width:,} rows, not {count:,}; export the model again")
        if not np.isfinite(found).all():
            raise ModelError("the rows of a picture are not finite; check the model with: onnx-textgen verify DIR")
        return found.reshape(count, -1)
