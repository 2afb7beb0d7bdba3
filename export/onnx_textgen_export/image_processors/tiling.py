"""The graph of an image processor that cuts pictures into tiles, and what it writes for each number of rows and columns."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import onnx_ir as ir

from onnx_textgen.images.image_reader import TILE_GRID
from onnx_textgen.package.manifest import TileText

from ..errors import ExportError
from .matching import MEAN_LEVELS, MOST_LEVELS, SIZES, levels, open_processor_graph, run_on
from .pixel_steps import Normalization, Operators, Picture, graph_of, named, normalization_of
from .processors import Pixels, Processor, trial_pictures
from .tile_steps import TileSteps, tile_steps_of

TILE_COUNT = "tiles"
"""The name of the first dimension of the numbers."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tiling:
    """How a processor cuts pictures."""

    processor: Processor
    """It, with tiles."""
    graph: ir.Model
    levels: float
    """The largest difference from transformers' numbers, in levels of a pixel."""
    texts: tuple[TileText, ...]
    small: list[Pixels]
    """Pictures that become few tiles, in several ways."""


def matching_tiles(processor: Processor, name: str, shape: Sequence[int], tokens: int, most_tokens: int) -> Tiling:
    """How a processor cuts pictures, with at most `most_tokens` for one, if that leaves more than a tile.

    `name`, `shape`: of the numbers of a tile, which becomes `tokens`. Raises `ExportError` for a way that is not known.
    """
    last, reason = normalization_of(processor.settings), "its settings name no way that is known"
    for way in tile_steps_of(processor.settings):
        lower = way.limited(most_tokens // tokens)
        if lower.most == 1:
            raise ExportError(f"tiles have {tokens:,} tokens each, and at most {most_tokens:,} are taken")
        cutting = processor.with_tiles(lower.switches if lower != way else {})
        try:
            return compared(cutting, lower, tile_graph(lower, last, name, shape), name, tokens)
        except ExportError as error:
            reason = str(error)
    raise ExportError(reason)


def tile_graph(way: TileSteps, last: Normalization, name: str, shape: Sequence[int]) -> ir.Model:
    """The graph: numbers [tiles, shape of one], and rows and columns."""

    def make(ops: Operators, picture: Picture) -> list[ir.Value]:
        tiles = way(ops, picture)
        numbers = ops.op("Reshape", last(ops, tiles.pixels), ops.constant([-1, *shape]))
        return [named(numbers, name, [TILE_COUNT, *shape]), named(tiles.grid, TILE_GRID, [2], ir.DataType.INT64)]

    return graph_of(make)


def compared(processor: Processor, way: TileSteps, graph: ir.Model, name: str, tokens: int) -> Tiling:
    """Compare a graph with transformers' processor on pictures of every grid; raises `ExportError` where they differ."""
    last, session = normalization_of(processor.settings), open_processor_graph(graph)
    sizes = dict(way.sizes())
    pictures = [*trial_pictures(SIZES), *trial_pictures(list(sizes.values()))]
    texts, apart = dict[tuple[int, int], TileText](), 0.0
    for picture, wanted_grid in zip(pictures, [*[None] * len(SIZES), *sizes], strict=True):
        read = processor.read(picture)
        wanted = read.pixels[name].numpy()
        found, (rows, columns) = run_on(session, picture)
        grid = (int(rows), int(columns))
        if found.size != wanted.size or (wanted_grid or grid) != grid:
            raise ExportError(f"{processor.name} cuts pictures in a way that is not known")
        largest, mean = levels([found.reshape(wanted.shape)], [wanted], last)
        if largest > MOST_LEVELS or mean > MEAN_LEVELS:
            raise ExportError(f"{processor.name} makes other numbers of tiles; they differ by {largest:.0f} levels of 255")
        apart = max(apart, largest)
        text = TileText(*grid, len(found), processor.with_one_token(read, len(found), tokens))
        if texts.setdefault(grid, text) != text:
            raise ExportError(f"{processor.name} writes other texts for pictures of {rows} by {columns} tiles")
    few = sorted(sizes, key=lambda grid: (math.prod(grid), grid))[:3]
    small = trial_pictures([sizes[grid] for grid in few])
    return Tiling(processor, graph, apart, tuple(sorted(texts.values(), key=lambda each: (each.rows, each.columns))), small)
