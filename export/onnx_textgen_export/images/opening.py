"""Opens what reads the pictures of a checkpoint: its processor as a graph, and the vision part, ready to be traced."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import onnx_ir as ir
from torch import nn
from transformers import PreTrainedModel

from onnx_textgen.package.manifest import MOST_IMAGE_TOKENS, ImageRecord, Target

from ..errors import ExportError
from ..image_processors.grids import GridForm, formula_of, made_of
from ..image_processors.matching import grids_of, matching_graph, matching_grid
from ..image_processors.patch_steps import GridSteps
from ..image_processors.processors import GRID_SIZES, Processor, has_processor, open_processor, trial_pictures
from ..image_processors.tiling import Tiling, matching_tiles
from ..reports import Report
from ..weights.streamed import Weights
from .decoder_arguments import decoder_arguments
from .vision import Seen, VisionPart, open_vision

HINT = "; add --text-only"
"""What to do about a part that reads pictures and cannot be exported."""
MOST_TOKENS = 1280
"""Most tokens of a picture whose tokens follow its shape, about a megapixel: larger ones take minutes without a graphics card."""


@dataclasses.dataclass(frozen=True, slots=True)
class Images:
    """What reads the pictures of a model."""

    processor: Processor
    part: VisionPart
    record: ImageRecord
    processor_graph: ir.Model
    levels: float
    """How far the processor's graph is from transformers', in levels of a pixel."""
    samples: list[Seen]
    """What the processor makes of some pictures."""
    decoder: nn.Module | None = None
    """The text decoder, if it takes positions on several axes."""
    tiling: Tiling | None = None
    """How pictures are cut into tiles, each of which is read as a whole picture is."""

    @property
    def whole(self) -> ImageRecord:
        """The record of pictures that are read as a whole."""
        return dataclasses.replace(self.record, tokens=self.record.tile_tokens, tiles=())


def reads_images(module: nn.Module) -> bool:
    """Return whether a module is a model of transformers that reads pictures."""
    config: Any = getattr(module, "config", None)
    return token_of_images(config) is not None and bool(parameters_of_features(module))


def token_of_images(config: object) -> int | None:
    """The id of the tokens of pictures, which configs name in two ways."""
    names = ("image_token_id", "image_token_index")
    return next((found for name in names if isinstance(found := getattr(config, name, None), int)), None)


@contextlib.contextmanager
def hinting() -> Iterator[None]:
    """Within the context, errors say how the text part is exported alone."""
    try:
        yield
    except ExportError as error:
        raise ExportError(f"{error}{HINT}") from error


@hinting()
def open_images(
    module: nn.Module,
    weights: Weights,
    folder: Path | None,
    report: Report,
    *,
    target: Target = "ort",
    most_tokens: int | None = None,
) -> Images | None:
    """What reads the pictures of a checkpoint; None if it does not say how. Raises `ExportError` if that cannot be exported.

    most_tokens: of a picture that becomes tokens by its size.
    """
    if folder is None or not folder.is_dir() or not has_processor(folder):
        report("images: nothing says how the source reads pictures (preprocessor_config.json), so the package reads text alone")
        return None
    report("images")
    model: Any = module
    token_id = cast(int, token_of_images(model.config))
    takes = frozenset(inspect.signature(model.forward).parameters) | parameters_of_features(model)
    processor = open_processor(folder, model.config, takes, token_id)
    (name,) = processor.sample.pixels
    if processor.varying:
        opened = open_grid(model, processor, name, report, most_tokens or MOST_TOKENS)
    else:
        opened = open_fixed(model, processor, name)
        if any(switch is False for switch in processor.switches.values()):
            opened = with_tiles(opened, name, report, most_tokens or MOST_TOKENS)
        elif most_tokens is not None:
            report(f"images: all become {opened.record.tokens:,} tokens, whatever most is asked for")
    with weights.present():
        open_vision(opened.part, opened.samples, target)
        given = {name: processor.sample.pixels[name]} | processor.constants(processor.sample)
        grid = opened.samples[0].grid
        tokens = math.prod(grid) if grid else opened.record.tile_tokens
        found = decoder_arguments(model, token_id, given, tokens, grid)
        record = dataclasses.replace(opened.record, bidirectional=found.bidirectional)
        return dataclasses.replace(opened, record=record, decoder=model.get_decoder() if found.has_axes else None)


def open_fixed(model: PreTrainedModel, processor: Processor, name: str) -> Images:
    """What reads pictures that all become as many tokens."""
    sample = processor.sample
    tokens = processor.tokens_of(sample)
    if not 1 <= tokens <= MOST_IMAGE_TOKENS:
        raise ExportError(f"a picture becomes {tokens:,} tokens, and at most {MOST_IMAGE_TOKENS:,} are supported")
    part = VisionPart(model, processor.token_id, tokens, name, processor.constants(sample))
    graph, levels = matching_graph(processor, list(sample.pixels[name].shape), name)
    record = ImageRecord(processor.placeholder, sample.expansion, processor.token_id, tokens)
    return Images(processor, part, record, graph, levels, [Seen(sample.pixels[name])])


def with_tiles(images: Images, name: str, report: Report, most: int) -> Images:
    """The same with pictures that are cut into tiles, of at most `most` tokens together, if the processor's way is known."""
    own, (seen,) = images.record, images.samples
    try:
        tiling = matching_tiles(images.processor, name, seen.pixels.shape, own.tokens, most)
    except ExportError as error:
        report(f"images: read as a whole, without tiles, as {own.tokens:,} tokens each ({error})")
        return images
    tokens = own.tokens * max(each.tiles for each in tiling.texts)
    report(f"images: cut into tiles of {own.tokens:,} tokens, at most {tokens:,} for a picture")
    record = dataclasses.replace(own, tokens=tokens, tiles=tiling.texts)
    return dataclasses.replace(images, record=record, processor=tiling.processor, tiling=tiling)


def open_grid(model: PreTrainedModel, processor: Processor, name: str, report: Report, most: int) -> Images:
    """What reads pictures that become tokens by their size, at most `most`."""
    try:
        graph, levels, way = matching_grid(processor, name)
        samples = Samples.of(processor, name, way, graph)
        if way.step.tokens > most:
            lower = way.limited(most)
            processor.limit(lower.step.edges)
            graph, levels, way = matching_grid(processor, name, [lower])
            report(f"images: {way.step.limit_in_words()} are made smaller; the model's own limit is higher")
    except ExportError as error:
        raise ExportError(
            f"{processor.name} makes {processor.varying} of pictures of other sizes, which is not supported ({error})"
        ) from error
    part = VisionPart(model, processor.token_id, 0, name, {})
    part.form = samples.form
    record = ImageRecord(
        processor.placeholder,
        samples.expansion,
        processor.token_id,
        way.step.largest,
        has_grid=True,
        row_break_ids=samples.row_break_ids,
    )
    return Images(processor, part, record, graph, levels, samples.seen)


@dataclasses.dataclass(frozen=True, slots=True)
class Samples:
    """What some pictures of several sizes show about a processor."""

    form: GridForm
    expansion: str
    row_break_ids: tuple[int, ...]
    seen: list[Seen]

    @classmethod
    def of(cls, processor: Processor, name: str, way: GridSteps, graph: ir.Model) -> Samples:
        """Compare the samples of a processor; `graph`: that computes what it does. Raises `ExportError`."""
        grids, reads = grids_of(way.layout.shape, graph, trial_pictures(GRID_SIZES)), processor.samples
        expansion, breaks = processor.without_grid(reads, grids)
        constants = [processor.constants(each) for each in reads]
        form = GridForm(
            way.layout.shape,
            tuple(formula_of(sizes, grids) for sizes in zip(*(each.pixels[name].shape for each in reads), strict=True)),
            {key: made_of([each[key] for each in constants], grids) for key in constants[0]},
        )
        seen = [Seen(form.as_split(each.pixels[name], grid), grid) for each, grid in zip(reads, grids, strict=True)]
        return cls(form, expansion, breaks, seen)


def parameters_of_features(model: Any) -> frozenset[str]:  # noqa: ANN401 - a class of transformers
    """Arguments of the method that reads pictures, which `forward` passes on; empty for a model that has none."""
    owner = next((each for each in (model, getattr(model, "base_model", None)) if hasattr(each, "get_image_features")), None)
    return frozenset() if owner is None else frozenset(inspect.signature(owner.get_image_features).parameters) - {"kwargs"}
