"""Image processors that cut a picture into tiles: resized to whole tiles, which a model reads one by one, often with the whole.

The steps are those of `pixel_steps`. Rows and columns of tiles follow the shape of a picture; all tiles have one size.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from .grids import Grid
from .pixel_steps import CHANNELS, Operators, Picture, ResizeLongest, ResizeTo, resized

TRIAL_UNIT = 24
"""Pixels of a step in the edges of trial pictures that are enlarged anyway."""


@dataclasses.dataclass(slots=True)
class Tiles:
    """A picture that was cut."""

    pixels: ir.Value
    """uint8 [tiles, 3, side, side]."""
    grid: ir.Value
    """Rows and columns, int64 [2]."""


class TileSteps(Protocol):
    """A way to cut pictures."""

    @property
    def most(self) -> int:
        """Most tiles of a picture, the whole counted."""
        ...

    @property
    def switches(self) -> dict[str, Any]:
        """Settings by which a processor of transformers cuts into at most as many."""
        ...

    def limited(self, most: int) -> TileSteps:
        """The same with at most as many tiles."""
        ...

    def sizes(self) -> Iterator[tuple[Grid, tuple[int, int]]]:
        """Each grid that is possible, with height and width of a picture that becomes it."""
        ...

    def __call__(self, ops: Operators, picture: Picture) -> Tiles:
        """Append the operators that cut a picture."""
        ...


def cut(ops: Operators, picture: Picture, grid: tuple[ir.Value, ir.Value], side: int, whole: Picture, *, first: bool) -> Tiles:
    """The tiles of a picture of rows times `side` by columns times `side` pixels, in lines; of more than one also the whole.

    first: the whole comes before them.
    """
    (rows, columns), length = grid, ops.constant(side)
    shape = ops.op("Concat", ops.constant(CHANNELS), rows, length, columns, length, axis=0)
    lines = ops.op("Transpose", ops.op("Reshape", picture.pixels, shape), perm=[1, 3, 0, 2, 4])
    tiles = ops.op("Reshape", lines, ops.constant([-1, CHANNELS, side, side]))
    zero, one = ops.constant(0), ops.constant(1)
    several = ops.cast(ops.op("Greater", ops.op("Mul", rows, columns), one), ir.DataType.INT64)
    added = ops.op("Slice", whole.pixels, zero, several, zero)
    parts = (added, tiles) if first else (tiles, added)
    return Tiles(ops.op("Concat", *parts, axis=0), ops.op("Concat", rows, columns, axis=0))


@dataclasses.dataclass(frozen=True, slots=True)
class LongestInTiles:
    """The longer edge to a fixed length, then both edges up to whole tiles; the whole is that made small again."""

    longest: int
    side: int
    resample: int

    @property
    def edge(self) -> int:
        """Tiles along the longer edge."""
        return math.ceil(self.longest / self.side)

    @property
    def most(self) -> int:
        """See `TileSteps`."""
        return self.edge**2 + (self.edge > 1)

    @property
    def switches(self) -> dict[str, Any]:
        """See `TileSteps`."""
        return {"size": {"longest_edge": self.longest}}

    def limited(self, most: int) -> LongestInTiles:
        """See `TileSteps`."""
        edge = min(self.edge, max(1, math.isqrt(max(0, most - 1))))
        return self if edge == self.edge else dataclasses.replace(self, longest=edge * self.side)

    def sizes(self) -> Iterator[tuple[Grid, tuple[int, int]]]:
        """See `TileSteps`."""
        for short in range(1, self.edge + 1):
            short_side, long_side = TRIAL_UNIT * (2 * short - 1), TRIAL_UNIT * 2 * self.edge  # clearly within its limits
            yield (short, self.edge), (short_side, long_side)
            if short < self.edge:
                yield (self.edge, short), (long_side, short_side)

    def __call__(self, ops: Operators, picture: Picture) -> Tiles:
        """See `TileSteps`."""
        picture = ResizeLongest(self.longest, self.resample, even=True)(ops, picture)
        height, width, length = ops.as_float(picture.height), ops.as_float(picture.width), ops.constant(self.side)
        aspect, is_wide = ops.op("Div", width, height), ops.op("GreaterOrEqual", width, height)

        def up(side: ir.Value) -> ir.Value:
            return ops.floor_div(ops.op("Add", side, ops.constant(self.side - 1)), length)

        across, down = up(picture.width), up(picture.height)
        pixels_across, pixels_down = (ops.as_float(ops.op("Mul", each, length)) for each in (across, down))
        rows = ops.op("Where", is_wide, up(ops.as_int(ops.op("Div", pixels_across, aspect))), down)
        columns = ops.op("Where", is_wide, across, up(ops.as_int(ops.op("Mul", pixels_down, aspect))))
        large = resized(ops, picture, ops.op("Mul", rows, length), ops.op("Mul", columns, length), self.resample)
        whole = ResizeTo(self.side, self.side, self.resample)(ops, large)
        return cut(ops, large, (rows, columns), self.side, whole, first=False)


@dataclasses.dataclass(frozen=True, slots=True)
class NearestShape:
    """To the rows and columns whose shape is nearest to the picture's; among equal shapes to more tiles of a large picture.

    It is not enlarged to more than twice its pixels for that. The rule is that of InternVL's paper (arXiv 2404.16821).
    """

    side: int
    least: int
    largest: int
    """Fewest and most tiles without the whole."""
    resample: int
    whole_first: bool = False

    @property
    def most(self) -> int:
        """See `TileSteps`."""
        return self.largest + (self.largest > 1)

    @property
    def switches(self) -> dict[str, Any]:
        """See `TileSteps`."""
        return {"min_patches": self.least, "max_patches": self.largest}

    def limited(self, most: int) -> NearestShape:
        """See `TileSteps`."""
        largest = min(self.largest, max(1, most - 1))
        return self if largest == self.largest else dataclasses.replace(self, largest=largest, least=min(self.least, largest))

    @property
    def grids(self) -> list[Grid]:
        """Rows and columns, those of fewer tiles first, and of as many those with fewer columns."""
        edges = range(1, self.largest + 1)
        found = [(rows, columns) for columns, rows in itertools.product(edges, edges)]
        return sorted((each for each in found if self.least <= math.prod(each) <= self.largest), key=math.prod)

    def sizes(self) -> Iterator[tuple[Grid, tuple[int, int]]]:
        """See `TileSteps`."""
        for rows, columns in self.grids:
            yield (rows, columns), (rows * self.side, columns * self.side)

    def __call__(self, ops: Operators, picture: Picture) -> Tiles:
        """See `TileSteps`."""
        rows, columns = np.array(self.grids, np.int64).T
        shapes, areas = ops.constant(columns / rows, np.float64), ops.constant(0.5 * self.side**2 * rows * columns, np.float64)
        height, width = ops.as_float(picture.height), ops.as_float(picture.width)
        apart = ops.op("Abs", ops.op("Sub", ops.op("Div", width, height), shapes))
        is_nearest = ops.op("Equal", apart, ops.op("ReduceMin", apart, keepdims=1))
        is_small = ops.op("Less", areas, ops.op("Mul", width, height))
        numbers, none = ops.constant(np.arange(len(rows))), ops.constant(-1)
        first = ops.op("ArgMax", ops.cast(is_nearest, ir.DataType.INT64), axis=0, keepdims=1)
        last = ops.op("ReduceMax", ops.op("Where", ops.op("And", is_nearest, is_small), numbers, none), keepdims=1)
        chosen = ops.op("Max", first, last)
        found = ops.op("Gather", ops.constant(rows), chosen), ops.op("Gather", ops.constant(columns), chosen)
        length = ops.constant(self.side)
        down, across = (ops.op("Mul", each, length) for each in found)
        large = resized(ops, picture, down, across, self.resample)
        whole = ResizeTo(self.side, self.side, self.resample)(ops, picture)
        return cut(ops, large, found, self.side, whole, first=self.whole_first)


def tile_steps_of(settings: Mapping[str, Any]) -> list[TileSteps]:
    """The ways in which processors with these settings cut pictures; a trial shows which is meant."""
    size, inner = dict(settings.get("size") or {}), dict(settings.get("max_image_size") or {}).get("longest_edge")
    resample, most = settings.get("resample"), settings.get("max_patches")
    if resample is None:
        return []
    ways = list[TileSteps]()
    if size.get("longest_edge") and inner:
        ways.append(LongestInTiles(size["longest_edge"], inner, resample))
    if size.get("height") and size.get("height") == size.get("width") and most:
        least = settings.get("min_patches") or 1
        ways += [NearestShape(size["height"], least, most, resample, whole_first=first) for first in (False, True)]
    return ways
