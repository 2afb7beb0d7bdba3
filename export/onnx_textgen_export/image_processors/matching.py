"""The graph of an image processor that computes what transformers' does: ways to use its settings are tried, and compared."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime

from onnx_textgen.images.pictures import PICTURE

from ..errors import ExportError
from .grids import Grid, grid_in
from .patch_steps import GridSteps, grid_steps_of
from .pixel_steps import Normalization, Operators, Picture, normalization_of, processor_graph, steps_of
from .processors import Pixels, Processor, trial_pictures

SIZES = ((64, 48), (33, 90), (480, 640), (700, 200), (224, 224), (17, 11))
"""Heights and widths of the pictures that processors are compared on."""
MOST_LEVELS, MEAN_LEVELS = 3.0, 0.2
"""How far a number may be from transformers', in levels of a pixel, of which there are 256; each resize rounds to a level."""
MOST_PIXELS = 8_000_000
"""Of a picture by which the limit of a processor is compared."""
Way = TypeVar("Way")
Numbers = npt.NDArray[np.float32]


def matching_graph(processor: Processor, shape: Sequence[int], name: str) -> tuple[ir.Model, float]:
    """The graph of an image processor, and its largest difference from transformers' in levels of a pixel.

    Raises `ExportError` if no order of the known steps computes what the processor does.
    """
    last = normalization_of(processor.settings)
    orders = steps_of(processor.settings)
    ways = ((steps, shape, functools.partial(processor_graph, steps, last, name, shape)) for steps in orders)
    model, apart, _ = first_matching(processor, ways, name, last)
    return model, apart


def matching_grid(processor: Processor, name: str, among: Sequence[GridSteps] | None = None) -> tuple[ir.Model, float, GridSteps]:
    """`matching_graph` for a processor that keeps the shape of pictures, and the way in which it does that.

    `among`: those to try, if they are known.
    """
    last = normalization_of(processor.settings)
    steps = grid_steps_of(processor.settings) if among is None else among
    ways = ((way, way.layout.shape, functools.partial(grid_graph, way, last, name)) for way in steps)
    model, apart, way = first_matching(processor, ways, name, last)
    check_beyond(processor, model, way, name)
    return model, apart, way


def check_beyond(processor: Processor, model: ir.Model, way: GridSteps, name: str) -> None:
    """Raise `ExportError` if pictures above the limit become another grid than transformers', or clearly other numbers.

    Pictures of more than `MOST_PIXELS` are left out: a limit that high is lowered, and compared then.
    """
    pictures = trial_pictures([size for size in way.beyond if math.prod(size) <= MOST_PIXELS])
    for picture, made in zip(pictures, run_processor(model, pictures), strict=True):
        read = processor.read(picture)
        wanted = read.pixels[name].numpy()
        if math.prod(grid_in(way.layout.shape, made.shape)) != processor.tokens_of(read) or made.size != wanted.size:
            raise ExportError(f"{processor.name} makes large pictures smaller in a way that is not known")
        _, mean = levels([made.reshape(wanted.shape)], [wanted], normalization_of(processor.settings))
        if mean > MEAN_LEVELS:
            raise ExportError(f"{processor.name} makes other numbers of large pictures")


def grid_graph(way: GridSteps, last: Normalization, name: str) -> ir.Model:
    """The graph of a processor that keeps the shape of pictures."""

    def arrange(ops: Operators, numbers: ir.Value, picture: Picture) -> ir.Value:
        factor = ops.constant(way.factor)
        return way.layout(ops, numbers, (ops.floor_div(picture.height, factor), ops.floor_div(picture.width, factor)))

    return processor_graph([way.step], last, name, way.layout.shape, arrange)


def first_matching(
    processor: Processor, ways: Iterable[tuple[Way, Sequence[int | str], Callable[[], ir.Model]]], name: str, last: Normalization
) -> tuple[ir.Model, float, Way]:
    """The first way whose graph gives transformers' numbers, with the graph and the largest difference; raises `ExportError`.

    ways: with the shape of the graph's result, where the dimensions of a grid have names.
    """
    pictures = trial_pictures(SIZES)
    reads = [processor.read(each) for each in pictures]
    wanted = [read.pixels[name].numpy() for read in reads]
    tokens = [processor.tokens_of(read) for read in reads]
    best, reason = float("inf"), "its settings name no size"
    for way, shape, make in ways:
        try:
            model = make()
            made = run_processor(model, pictures)
            found = [each.reshape(want.shape) for each, want in zip(made, wanted, strict=True)]
        except Exception as error:  # noqa: BLE001 - of an order of steps that does not give the shape
            reason = f"{error!s:.100}".splitlines()[0]
            continue
        largest, mean = levels(found, wanted, last)
        if largest <= MOST_LEVELS and mean <= MEAN_LEVELS:
            if has_names(shape) and [math.prod(grid_in(shape, each.shape)) for each in made] != tokens:
                reason = "its tokens are no grid of patches"
                continue
            return model, largest, way
        best = min(best, largest)
    if best < float("inf"):
        reason = f"the nearest differs by {best:.0f} levels of 255"
    raise ExportError(f"no known order of steps computes what {processor.name} does ({reason})")


def has_names(shape: Sequence[int | str]) -> bool:
    """Return whether the dimensions of a grid are among those of a shape."""
    return any(isinstance(size, str) for size in shape)


def run_processor(model: ir.Model, pictures: Sequence[Pixels]) -> list[Numbers]:
    """What a processor's graph makes of pictures."""
    session = open_processor_graph(model)
    return [run_on(session, each)[0] for each in pictures]


def open_processor_graph(model: ir.Model) -> onnxruntime.InferenceSession:
    """A session of a processor's graph."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_on(session: onnxruntime.InferenceSession, picture: Pixels) -> list[Numbers]:
    """The outputs of a processor's graph for a picture."""
    return session.run(None, {PICTURE: picture})  # type: ignore[no-any-return]


def grids_of(shape: Sequence[int | str], model: ir.Model, pictures: Sequence[Pixels]) -> list[Grid]:
    """The grids of pictures, by a processor's graph; `shape`: of its result, with the names of their dimensions."""
    return [grid_in(shape, each.shape) for each in run_processor(model, pictures)]


def levels(found: Sequence[Numbers], wanted: Sequence[Numbers], last: Normalization) -> tuple[float, float]:
    """The largest and the mean difference in levels of a pixel.

    Of numbers without a dimension for the channels, each counts as that of the channel with the largest levels.
    """
    deviation = np.array(last.deviation) / last.scale
    level = np.reshape(deviation, (-1, 1, 1)) if wanted[0].ndim == 4 else deviation.max()
    differences = [np.abs(one - other) * level for one, other in zip(found, wanted, strict=True)]
    return max(float(each.max()) for each in differences), float(np.mean([each.mean() for each in differences]))
