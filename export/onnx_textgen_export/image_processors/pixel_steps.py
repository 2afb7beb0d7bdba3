"""The steps of image processors as ONNX operators: resize, pad, crop and normalise, from pixels of any size to a fixed shape.

Pixels are numbers from 0 to 255 between the steps, as Pillow has them, whose resampling this follows. A rounded number may
differ from Pillow's by one or two, as its fixed-point arithmetic rounds otherwise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from onnx_textgen.images.pictures import PICTURE

OPSET = 20
"""Of the graph; Resize keeps the antialiasing that it has here."""
BILINEAR, BICUBIC, LANCZOS = 2, 3, 1
"""Pillow's numbers of its filters."""
RESIZE_MODES: dict[int, dict[str, Any]] = {
    BILINEAR: {"mode": "linear"},
    BICUBIC: {"mode": "cubic", "cubic_coeff_a": -0.5},
}
"""Filters that the operator Resize knows, with its attributes."""
LANCZOS_LOBES = 3.0
CHANNELS = 3
Color = tuple[int, ...]


class Operators:
    """A graph that grows by one operator a call; scalars are tensors [1]."""

    def __init__(self) -> None:
        self.tape = ir.tape.Tape()

    def op(self, name: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:  # noqa: ANN401 - an attribute of any type
        """Append an operator; returns its output."""
        return self.tape.op(name, list(inputs), attributes)

    def constant(self, value: object, kind: type[np.generic] = np.int64) -> ir.Value:
        """A constant tensor."""
        tensor = ir.tensor(np.atleast_1d(np.asarray(value, dtype=kind)), name=f"constant_{len(self.tape.initializers)}")
        return self.tape.initializer(tensor)

    def cast(self, value: ir.Value, kind: ir.DataType) -> ir.Value:
        """Return the value in another type."""
        return self.op("Cast", value, to=kind)

    def floor_div(self, one: ir.Value, other: ir.Value) -> ir.Value:
        """Whole numbers from 0, divided and rounded down."""
        return self.op("Div", one, other)

    def as_float(self, value: ir.Value) -> ir.Value:
        """A whole number as Python divides it: in double precision."""
        return self.cast(value, ir.DataType.DOUBLE)

    def as_int(self, value: ir.Value) -> ir.Value:
        """A positive number rounded down."""
        return self.cast(value, ir.DataType.INT64)


@dataclasses.dataclass(slots=True)
class Picture:
    """A picture on its way through the steps."""

    pixels: ir.Value
    """uint8 [1, 3, height, width]."""
    height: ir.Value
    width: ir.Value


Arrangement = Callable[[Operators, ir.Value, Picture], ir.Value]


class Step(Protocol):
    """One step from a picture to a picture."""

    def __call__(self, ops: Operators, picture: Picture) -> Picture:
        """The picture after the step."""
        ...


def resized(ops: Operators, picture: Picture, height: ir.Value, width: ir.Value, resample: int) -> Picture:
    """A picture of another size by one of Pillow's filters."""
    if resample not in {LANCZOS, *RESIZE_MODES}:
        raise ValueError(f"the filter {resample} is not known")
    if resample == LANCZOS:
        columns = filtered(ops, picture.pixels, lanczos_weights(ops, picture.width, width))
        turned = filtered(ops, ops.op("Transpose", columns, perm=[0, 1, 3, 2]), lanczos_weights(ops, picture.height, height))
        return Picture(ops.op("Transpose", turned, perm=[0, 1, 3, 2]), height, width)
    sizes = ops.op("Concat", ops.constant([1, CHANNELS]), height, width, axis=0)
    found = ops.op("Resize", picture.pixels, None, None, sizes, antialias=1, exclude_outside=1, **RESIZE_MODES[resample])
    return Picture(found, height, width)


def lanczos_weights(ops: Operators, old: ir.Value, new: ir.Value) -> ir.Value:
    """Weights [old, new] of Lanczos' filter, which ONNX has no operator for.

    A new pixel is the mean of the old ones around it, weighted by sinc(d) sinc(d / 3) of their distance; if the picture shrinks,
    distances shrink with it, so that each old pixel counts.
    """
    zero, one, half = ops.constant(0), ops.constant(1), ops.constant(0.5, np.float64)
    scale = ops.op("Div", ops.as_float(old), ops.as_float(new))
    shrinking = ops.op("Max", scale, ops.constant(1.0, np.float64))
    scalars = [ops.op("Squeeze", each, zero) for each in (zero, old, new, one)]
    olds, news = (ops.as_float(ops.op("Range", scalars[0], size, scalars[3])) for size in scalars[1:3])
    centers = ops.op("Mul", ops.op("Add", news, half), scale)
    places = ops.op("Unsqueeze", ops.op("Add", olds, half), one)
    distance = ops.op("Div", ops.op("Sub", places, centers), shrinking)
    lobes = ops.constant(LANCZOS_LOBES, np.float64)
    weights = ops.op("Mul", sinc(ops, distance), sinc(ops, ops.op("Div", distance, lobes)))
    inside = ops.op("Less", ops.op("Abs", distance), lobes)
    weights = ops.op("Where", inside, weights, ops.constant(0.0, np.float64))
    total = ops.op("ReduceSum", weights, zero, keepdims=1)
    return ops.cast(ops.op("Div", weights, total), ir.DataType.FLOAT)


def sinc(ops: Operators, x: ir.Value) -> ir.Value:
    """sin(pi x) / (pi x), in the float32 that ONNX Runtime has a sine for, and 1 at 0."""
    single = ops.cast(ops.op("Mul", x, ops.constant(math.pi, np.float64)), ir.DataType.FLOAT)
    one = ops.constant(1.0, np.float32)
    is_zero = ops.op("Less", ops.op("Abs", single), ops.constant(1e-6, np.float32))
    divisor = ops.op("Where", is_zero, one, single)
    return ops.as_float(ops.op("Where", is_zero, one, ops.op("Div", ops.op("Sin", divisor), divisor)))


def filtered(ops: Operators, pixels: ir.Value, weights: ir.Value) -> ir.Value:
    """Pixels [1, 3, lines, old] times weights [old, new], rounded to pixels again, as Pillow does after each direction."""
    found = ops.op("MatMul", ops.cast(pixels, ir.DataType.FLOAT), weights)
    return ops.cast(ops.op("Clip", ops.op("Round", found), scalar(ops, 0), scalar(ops, 255)), ir.DataType.UINT8)


def scalar(ops: Operators, value: float) -> ir.Value:
    """A number without dimensions."""
    return ops.op("Squeeze", ops.constant(value, np.float32), ops.constant(0))


@dataclasses.dataclass(frozen=True, slots=True)
class ResizeTo:
    """To a fixed size, whatever the shape was."""

    height: int
    width: int
    resample: int

    def __call__(self, ops: Operators, picture: Picture) -> Picture:
        """See `Step`."""
        return resized(ops, picture, ops.constant(self.height), ops.constant(self.width), self.resample)


@dataclasses.dataclass(frozen=True, slots=True)
class ResizeShortest:
    """The shorter edge to a fixed length; the shape stays."""

    edge: int
    resample: int

    def __call__(self, ops: Operators, picture: Picture) -> Picture:
        """See `Step`."""
        short = ops.op("Min", picture.height, picture.width)
        edge = ops.constant(self.edge)
        height, width = (ops.floor_div(ops.op("Mul", edge, side), short) for side in (picture.height, picture.width))
        return resized(ops, picture, height, width, self.resample)


@dataclasses.dataclass(frozen=True, slots=True)
class ResizeLongest:
    """The longer edge to a fixed length; the shorter is rounded to the nearest whole number, or up to an even one."""

    edge: int
    resample: int
    smallest: int = 1
    even: bool = False

    def __call__(self, ops: Operators, picture: Picture) -> Picture:
        """See `Step`."""
        height, width = (self.side(ops, picture, side) for side in (picture.height, picture.width))
        return resized(ops, picture, height, width, self.resample)

    def side(self, ops: Operators, picture: Picture, side: ir.Value) -> ir.Value:
        """The new length of an edge."""
        longest, shortest = (ops.op(name, picture.height, picture.width) for name in ("Max", "Min"))
        if not self.even:
            factor = ops.op("Div", ops.constant(self.edge, np.float64), ops.as_float(longest))
            found = ops.as_int(ops.op("Round", ops.op("Mul", ops.as_float(side), factor)))
            return ops.op("Max", found, ops.constant(self.smallest))
        edge, two = ops.constant(self.edge), ops.constant(2)
        # Rounded as transformers rounds: divided by width / height if that is more than 1, and multiplied by it if it is less.
        of_wide = ops.op("Div", ops.as_float(edge), ops.op("Div", ops.as_float(longest), ops.as_float(shortest)))
        of_tall = ops.op("Mul", ops.as_float(edge), ops.op("Div", ops.as_float(shortest), ops.as_float(longest)))
        is_wide, is_long = ops.op("GreaterOrEqual", picture.width, picture.height), ops.op("Equal", side, longest)
        found = ops.as_int(ops.op("Where", is_wide, of_wide, of_tall))
        found = ops.op("Add", found, ops.op("Mod", found, two))
        return ops.op("Max", ops.op("Where", is_long, edge, found), ops.constant(self.smallest))


@dataclasses.dataclass(frozen=True, slots=True)
class PadToSquare:
    """The shorter edge as long as the longer one, with the picture in the middle."""

    color: Color

    def __call__(self, ops: Operators, picture: Picture) -> Picture:
        """See `Step`."""
        longest, two, none = ops.op("Max", picture.height, picture.width), ops.constant(2), ops.constant([0, 0])
        missing = [ops.op("Sub", longest, side) for side in (picture.height, picture.width)]
        before = [ops.floor_div(each, two) for each in missing]
        after = [ops.op("Sub", each, first) for each, first in zip(missing, before, strict=True)]
        pads = ops.op("Concat", none, *before, none, *after, axis=0)
        padded = list[ir.Value]()
        for channel, color in enumerate(self.color):  # one at a time, as an operator pads by one number
            pixels = ops.op("Gather", picture.pixels, ops.constant(channel), axis=1)
            value = ops.op("Squeeze", ops.constant(color, np.uint8), ops.constant(0))
            padded.append(ops.op("Pad", pixels, pads, value))
        return Picture(ops.op("Concat", *padded, axis=1), longest, longest)


@dataclasses.dataclass(frozen=True, slots=True)
class CenterCrop:
    """The middle of a picture that is at least as large."""

    height: int
    width: int

    def __call__(self, ops: Operators, picture: Picture) -> Picture:
        """See `Step`."""
        size, two = ops.constant([self.height, self.width]), ops.constant(2)
        start = ops.floor_div(ops.op("Sub", ops.op("Concat", picture.height, picture.width, axis=0), size), two)
        found = ops.op("Slice", picture.pixels, start, ops.op("Add", start, size), ops.constant([2, 3]))
        return Picture(found, ops.constant(self.height), ops.constant(self.width))


@dataclasses.dataclass(frozen=True, slots=True)
class Normalization:
    """From pixels to numbers: (pixels * scale - mean) / deviation."""

    scale: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __call__(self, ops: Operators, pixels: ir.Value) -> ir.Value:
        """The numbers, float32."""
        found = ops.op("Mul", ops.cast(pixels, ir.DataType.FLOAT), ops.constant(self.scale, np.float32))
        by_channel = ops.constant([1, len(self.mean), 1, 1])
        mean, deviation = (ops.op("Reshape", ops.constant(each, np.float32), by_channel) for each in (self.mean, self.deviation))
        return ops.op("Div", ops.op("Sub", found, mean), deviation)


def processor_graph(
    steps: Sequence[Step], last: Normalization, output: str, shape: Sequence[int | str], arrange: Arrangement | None = None
) -> ir.Model:
    """The graph of an image processor: pixels uint8 [height, width, 3] in, float32 out.

    `shape`: of the result; `arrange`: what makes it of the numbers of a picture, if its sizes vary.
    """

    def make(ops: Operators, picture: Picture) -> list[ir.Value]:
        for step in steps:
            picture = step(ops, picture)
        numbers = last(ops, picture.pixels)
        found = ops.op("Reshape", numbers, ops.constant(list(shape))) if arrange is None else arrange(ops, numbers, picture)
        return [named(found, output, shape)]

    return graph_of(make)


def named(value: ir.Value, name: str, shape: Sequence[int | str], kind: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    """A value as an output of a graph."""
    value.name, value.shape, value.type = name, ir.Shape(list(shape)), ir.TensorType(kind)
    return value


def graph_of(make: Callable[[Operators, Picture], list[ir.Value]]) -> ir.Model:
    """A graph that takes the pixels uint8 [height, width, 3] of a picture; `make` returns its outputs."""
    ops = Operators()
    given = ir.Value(name=PICTURE, shape=ir.Shape(["height", "width", CHANNELS]), type=ir.TensorType(ir.DataType.UINT8))
    channels_first = ops.op("Unsqueeze", ops.op("Transpose", given, perm=[2, 0, 1]), ops.constant(0))
    height, width = (ops.op("Shape", given, start=axis, end=axis + 1) for axis in (0, 1))
    return finished(ops, given, make(ops, Picture(channels_first, height, width)), "image_processor")


def finished(ops: Operators, given: ir.Value, outputs: Sequence[ir.Value], name: str) -> ir.Model:
    """The graph of the operators so far, from one input to these outputs."""
    graph = ir.Graph(
        [given], outputs, nodes=ops.tape.nodes, initializers=ops.tape.initializers, opset_imports={"": OPSET}, name=name
    )
    for number, value in enumerate(value for node in graph for value in node.outputs):
        value.name = value.name or f"v{number}"
    return ir.Model(graph, ir_version=10, producer_name="onnx-textgen")


def steps_of(settings: Mapping[str, Any]) -> list[list[Step]]:
    """The orders of steps in which processors use these settings, the usual one first; a trial shows which is meant."""
    resample = settings.get("resample") if settings.get("do_resize") else None
    size, crop = dict(settings.get("size") or {}), dict(settings.get("crop_size") or {})
    whole, inner = size.get("longest_edge"), dict(settings.get("max_image_size") or {}).get("longest_edge")
    color = colors_of(settings)
    cropped: list[Step] = [CenterCrop(crop["height"], crop["width"])] if settings.get("do_center_crop") and "height" in crop else []
    if resample is None:
        return [cropped]
    orders = list[list[Step]]()
    if "height" in size and "width" in size:
        square = ResizeTo(size["height"], size["width"], resample)
        orders += [[square, *cropped], [PadToSquare(color), square, *cropped]]
        if size["height"] == size["width"]:
            smallest = settings.get("min_size") or 1
            orders.append([ResizeLongest(size["height"], resample, smallest), PadToSquare(color)])
    if size.get("shortest_edge"):
        shortest = ResizeShortest(size["shortest_edge"], resample)
        orders += [[shortest, *cropped], [PadToSquare(color), shortest, *cropped]]
    if whole and inner:
        orders.append([ResizeLongest(whole, resample, even=True), ResizeTo(inner, inner, resample)])
    return orders


def colors_of(settings: Mapping[str, Any]) -> Color:
    """The color of padding: the one that is named, or the mean of all pictures."""
    named, mean = settings.get("background_color"), settings.get("image_mean") or 0
    if named is None:
        named = [int(255 * each) for each in (mean if isinstance(mean, Sequence) else (mean,) * 3)]
    return tuple(named) if isinstance(named, Sequence) else (int(named),) * 3


def normalization_of(settings: Mapping[str, Any]) -> Normalization:
    """The last step."""
    scale = float(settings.get("rescale_factor") or 1 / 255) if settings.get("do_rescale") else 1.0
    if not settings.get("do_normalize"):
        return Normalization(scale, (0.0,) * 3, (1.0,) * 3)
    mean, deviation = (
        each if isinstance(each, Sequence) else (each,) * 3 for each in (settings["image_mean"], settings["image_std"])
    )
    return Normalization(scale, tuple(map(float, mean)), tuple(map(float, deviation)))
