"""Image processors whose pictures keep their shape: resized to a grid of whole tokens, and cut into patches.

The steps are those of `pixel_steps`; what follows them is a layout: the order in which the model takes the pixels. Numbers of
tokens down and across are two dimensions of the result, so that a graph of the vision part sees them as sizes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol

import numpy as np
import onnx_ir as ir

from .pixel_steps import CHANNELS, Operators, Picture, resized

Enlarging = Literal["no", "both", "each"]
"""Before a picture smaller than a token is fitted: not, both edges by one factor, or each edge that is too short."""
LONGEST_STRIP = 200
"""How many times as long as the other an edge of a picture may be."""
HEIGHT, WIDTH = "grid_height", "grid_width"
"""Names of the dimensions."""
Size = int | str


@dataclasses.dataclass(frozen=True, slots=True)
class ResizeToGrid:
    """To whole tokens, and a number of pixels within limits; the shape stays as near as that allows."""

    factor: int
    """Pixels of a token, down and across."""
    least: int
    most: int
    """Limits of all pixels."""
    resample: int
    frames: int = 1
    """Each pixel counts as often."""
    enlarging: Enlarging = "no"

    @property
    def tokens(self) -> int:
        """See `ResizeWithin.tokens`."""
        return self.most // (self.frames * self.factor**2)

    @property
    def largest(self) -> int:
        """See `ResizeWithin.largest`: of a strip, whose short edge is at least a token, or whose edges are rounded up."""
        least = self.least / (self.frames * self.factor**2)
        rounded_up = least + 1 + math.sqrt(least) * (math.sqrt(LONGEST_STRIP) + 1)
        return max(self.tokens, math.ceil(math.sqrt(LONGEST_STRIP * self.tokens)), math.ceil(rounded_up))

    def limit_in_words(self) -> str:
        """See `ResizeWithin.limit_in_words`."""
        return f"those of more than {self.tokens:,} tokens"

    @property
    def edges(self) -> dict[str, int]:
        """See `ResizeWithin.edges`."""
        return {"shortest_edge": self.least, "longest_edge": self.most}

    def limited(self, tokens: int) -> ResizeToGrid:
        """See `ResizeWithin.limited`."""
        most = tokens * self.frames * self.factor**2
        return dataclasses.replace(self, least=min(self.least, most), most=most)

    def __call__(self, ops: Operators, picture: Picture) -> Picture:
        """See `Step`."""
        sides = self.enlarged(ops, [ops.as_float(side) for side in (picture.height, picture.width)])
        factor, area = self.double(ops, self.factor), ops.op("Mul", *sides)
        area = ops.op("Mul", area, self.double(ops, self.frames))
        rounded = [ops.op("Round", ops.op("Div", side, factor)) for side in sides]
        pixels = ops.op("Mul", ops.op("Mul", *rounded), self.double(ops, self.frames * self.factor**2))
        shrink = ops.op("Sqrt", ops.op("Div", area, self.double(ops, self.most)))
        smaller = [ops.op("Floor", ops.op("Div", ops.op("Div", side, shrink), factor)) for side in sides]
        grow = ops.op("Sqrt", ops.op("Div", self.double(ops, self.least), area))
        larger = [ops.op("Ceil", ops.op("Div", ops.op("Mul", side, grow), factor)) for side in sides]
        too_many = ops.op("Greater", pixels, self.double(ops, self.most))
        too_few = ops.op("Less", pixels, self.double(ops, self.least))
        counts = list[ir.Value]()
        for fit, small, large in zip(rounded, smaller, larger, strict=True):
            found = ops.op("Where", too_few, large, fit)
            found = ops.op("Where", too_many, ops.op("Max", small, self.double(ops, 1)), found)
            counts.append(ops.op("Mul", ops.as_int(found), ops.constant(self.factor)))
        return resized(ops, picture, counts[0], counts[1], self.resample)

    def enlarged(self, ops: Operators, sides: list[ir.Value]) -> list[ir.Value]:
        """Edges of a picture that is at least as large as a token."""
        factor, one = self.double(ops, self.factor), self.double(ops, 1)
        if self.enlarging == "both":
            scale = ops.op("Max", one, *(ops.op("Div", factor, side) for side in sides))
            return [ops.op("Floor", ops.op("Mul", side, scale)) for side in sides]
        if self.enlarging == "each":
            for short, long in ((0, 1), (1, 0)):
                is_short = ops.op("Less", sides[short], factor)
                other = ops.op("Round", ops.op("Div", ops.op("Mul", sides[long], factor), sides[short]))
                sides[long] = ops.op("Where", is_short, other, sides[long])
                sides[short] = ops.op("Where", is_short, factor, sides[short])
        return sides

    @staticmethod
    def double(ops: Operators, value: float) -> ir.Value:
        """A constant in double precision."""
        return ops.constant(value, np.float64)


@dataclasses.dataclass(frozen=True, slots=True)
class ResizeWithin:
    """Into a square if it is larger, and up to whole tokens; the shape stays as near as that allows."""

    factor: int
    edge: int
    resample: int

    @property
    def tokens(self) -> int:
        """The most tokens of a picture that is no strip."""
        return math.ceil(self.edge / self.factor) ** 2

    @property
    def largest(self) -> int:
        """The most tokens of any picture."""
        return self.tokens

    def limit_in_words(self) -> str:
        """Which pictures are made smaller, for a report."""
        return f"edges of more than {self.edge:,} pixels"

    @property
    def edges(self) -> dict[str, int]:
        """The processor's setting `size` that means this step."""
        return {"longest_edge": self.edge}

    def limited(self, tokens: int) -> ResizeWithin:
        """The step by which a picture becomes no more tokens than that."""
        return dataclasses.replace(self, edge=math.isqrt(tokens) * self.factor)

    def __call__(self, ops: Operators, picture: Picture) -> Picture:
        """See `Step`."""
        sides = [ops.as_float(side) for side in (picture.height, picture.width)]
        edge = ops.constant(self.edge, np.float64)
        ratio = ops.op("Max", ops.constant(1, np.float64), *(ops.op("Div", side, edge) for side in sides))
        factor, one, counts = ops.constant(self.factor), ops.constant(1), list[ir.Value]()
        for side in sides:
            pixels = ops.as_int(ops.op("Floor", ops.op("Div", side, ratio)))
            count = ops.op("Add", ops.op("Div", ops.op("Sub", pixels, one), factor), one)
            counts.append(ops.op("Mul", count, factor))
        return resized(ops, picture, counts[0], counts[1], self.resample)


class Layout(Protocol):
    """The order in which a model takes the pixels of a grid."""

    @property
    def shape(self) -> tuple[Size, ...]:
        """Of the result, where each dimension of the grid stands alone."""
        ...

    def __call__(self, ops: Operators, numbers: ir.Value, grid: tuple[ir.Value, ir.Value]) -> ir.Value:
        """Numbers [1, 3, height, width] in this order; `grid`: tokens down and across, each [1]."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Patches:
    """Patch by patch, in the order of their tokens, or of the whole picture."""

    merge: int
    """Patches of a token, down and across."""
    patch: int
    frames: int
    by_token: bool

    @property
    def shape(self) -> tuple[Size, ...]:
        """See `Layout`."""
        numbers = CHANNELS * self.frames * self.patch**2
        if self.by_token:
            return HEIGHT, WIDTH, self.merge**2 * numbers
        return HEIGHT, self.merge, WIDTH, self.merge * numbers

    def __call__(self, ops: Operators, numbers: ir.Value, grid: tuple[ir.Value, ir.Value]) -> ir.Value:
        """See `Layout`."""
        patch = (self.merge, self.patch)
        found = reshaped(ops, numbers, [CHANNELS, HEIGHT, *patch, WIDTH, *patch], grid)
        found = ops.op("Transpose", found, perm=[1, 4, 2, 5, 0, 3, 6] if self.by_token else [1, 2, 4, 5, 0, 3, 6])
        if self.frames > 1:
            found = ops.op("Unsqueeze", found, ops.constant(5))
            found = ops.op("Tile", found, ops.constant([1, 1, 1, 1, 1, self.frames, 1, 1]))
        return reshaped(ops, found, self.shape, grid)


@dataclasses.dataclass(frozen=True, slots=True)
class Whole:
    """Channel by channel."""

    factor: int

    @property
    def shape(self) -> tuple[Size, ...]:
        """See `Layout`."""
        return CHANNELS, HEIGHT, self.factor, WIDTH, self.factor

    def __call__(self, ops: Operators, numbers: ir.Value, grid: tuple[ir.Value, ir.Value]) -> ir.Value:
        """See `Layout`."""
        return reshaped(ops, numbers, self.shape, grid)


def reshaped(ops: Operators, value: ir.Value, shape: tuple[Size, ...] | list[Size], grid: tuple[ir.Value, ir.Value]) -> ir.Value:
    """A value in another shape."""
    height, width = grid
    named = {HEIGHT: height, WIDTH: width}
    sizes = [named[size] if isinstance(size, str) else ops.constant(size) for size in shape]
    return ops.op("Reshape", value, ops.op("Concat", *sizes, axis=0))


@dataclasses.dataclass(frozen=True, slots=True)
class GridSteps:
    """Steps to a grid, and a layout."""

    step: ResizeToGrid | ResizeWithin
    layout: Layout

    @property
    def factor(self) -> int:
        """Pixels of a token, down and across."""
        return self.step.factor

    @property
    def beyond(self) -> list[tuple[int, int]]:
        """Heights and widths of two pictures that are larger than the limit."""
        edge = math.isqrt(self.step.tokens) * self.factor
        return [(edge * 2, edge * 3 // 4), (edge + edge // 3, edge * 2)]

    def limited(self, tokens: int) -> GridSteps:
        """The same for pictures of no more tokens than that."""
        return dataclasses.replace(self, step=self.step.limited(tokens))


def grid_steps_of(settings: Mapping[str, Any]) -> Iterator[GridSteps]:
    """The ways in which processors use these settings, the usual ones first; a trial shows which is meant."""
    size, patch = dict(settings.get("size") or {}), edge_of(settings.get("patch_size"))
    resample = settings.get("resample")
    if not patch or resample is None or not size.get("longest_edge"):
        return
    merges = dict.fromkeys(int(settings.get(name) or 1) for name in ("merge_size", "spatial_merge_size", "downsample_factor"))
    frames = int(settings.get("temporal_patch_size") or 1)
    for merge in merges:
        factor = patch * merge
        steps = list[ResizeToGrid | ResizeWithin]()
        if least := size.get("shortest_edge"):
            kinds: Iterator[tuple[Enlarging, int]] = itertools.product(("no", "both", "each"), dict.fromkeys((1, frames)))
            steps += [ResizeToGrid(factor, least, size["longest_edge"], resample, count, how) for how, count in kinds]
        steps.append(ResizeWithin(factor, size["longest_edge"], resample))
        layouts: list[Layout] = [Patches(merge, patch, frames, by_token=True), Patches(merge, patch, frames, by_token=False)]
        for step, layout in itertools.product(steps, [*layouts, Whole(factor)]):
            yield GridSteps(step, layout)


def edge_of(size: Any) -> int:  # noqa: ANN401 - a setting
    """The edge of a square that a setting names by one number or by two; 0 if it names none."""
    found = size.get("height", 0) if isinstance(size, Mapping) else size
    return found if isinstance(found, int) else 0
