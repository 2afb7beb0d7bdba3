"""The part of an export that reads pictures: opened before the decoder is traced, written and proved after it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import onnx_ir as ir
from torch import nn
from transformers import PreTrainedModel

from onnx_textgen.images.golden import SIZES, golden_picture, numbers_of
from onnx_textgen.package.manifest import (
    IMAGE_PROCESSOR_GRAPH,
    MOST_IMAGE_TOKENS,
    VISION_GRAPH,
    VISION_WEIGHTS,
    GoldenPicture,
    ImageRecord,
    Precision,
    Target,
)

from ..errors import ExportError
from ..images.grids import Grid, GridForm, formula_of, made_of
from ..images.matching import grids_of, matching_graph, matching_grid
from ..images.positions import decoder_with_axes
from ..images.processors import GRID_SIZES, Processor, has_processor, open_processor, trial_pictures
from ..images.proof import ROWS_COSINE, ImageProof, Proven, constants_of_model
from ..images.tracing import trace_vision
from ..images.vision import Seen, VisionPart, open_vision
from ..package.writer import write_weights
from ..passes.order import Settings, run_passes
from ..passes.quantization.options import Quantization
from ..passes.quantization.rounding import Roundings
from ..reports import Report
from ..sources.image_rows import ImagePart
from ..sources.source import Source
from ..weights.streamed import Weights
from .options import ExportOptions

HINT = "; add --text-only"
"""What to do about a part that reads pictures and cannot be exported."""
VISION_BLOCKS = (64, 32, 16)
"""Blocks of the codes of 8 bits in which a quantised package stores its vision part, the largest first."""
GRID_TOKENS = 1280
"""Most tokens of a picture that keeps its shape, about a megapixel: of larger ones a processor without a graphics card takes minutes."""
TOLERANCES: dict[Precision, float] = {"fp32": 1e-3, "fp16": 0.02, "int8": 0.05, "int4": 0.05}
"""How far the numbers of golden pictures may be from the export's on another processor, by precision."""


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
    module: nn.Module, weights: Weights, folder: Path | None, report: Report, target: Target = "ort"
) -> Images | None:
    """What reads the pictures of a checkpoint; None if it does not say how. Raises `ExportError` if that cannot be exported."""
    if folder is None or not folder.is_dir() or not has_processor(folder):
        report("images: nothing says how the source reads pictures (preprocessor_config.json), so the package reads text alone")
        return None
    report("images")
    model: Any = module
    token_id = cast(int, token_of_images(model.config))
    takes = frozenset(inspect.signature(model.forward).parameters) | parameters_of_features(model)
    processor = open_processor(folder, model.config, takes, token_id)
    (name,) = processor.sample.pixels
    opened = open_grid(model, processor, name, report) if processor.varying else open_fixed(model, processor, name)
    with weights.present():
        open_vision(opened.part, opened.samples, target)
        if opened.part.form is not None:
            given = {name: processor.sample.pixels[name]} | constants_of_model(processor.sample)
            found = decoder_with_axes(model, token_id, given, cast(Grid, opened.samples[0].grid))
            opened = dataclasses.replace(opened, decoder=found)
    if any(switch is False for switch in processor.switches.values()):
        report("images: read as a whole, without tiles, so that each becomes as many tokens")
    return opened


def open_fixed(model: PreTrainedModel, processor: Processor, name: str) -> Images:
    """What reads pictures that all become as many tokens."""
    sample = processor.sample
    tokens = processor.ids(sample).count(processor.token_id)
    if not 1 <= tokens <= MOST_IMAGE_TOKENS:
        raise ExportError(f"a picture becomes {tokens:,} tokens, and at most {MOST_IMAGE_TOKENS:,} are supported")
    part = VisionPart(model, processor.token_id, tokens, name, constants_of_model(sample))
    graph, levels = matching_graph(processor, list(sample.pixels[name].shape), name)
    record = ImageRecord(processor.placeholder, sample.expansion, processor.token_id, tokens)
    return Images(processor, part, record, graph, levels, [Seen(sample.pixels[name])])


def open_grid(model: PreTrainedModel, processor: Processor, name: str, report: Report) -> Images:
    """What reads pictures that become tokens by their size."""
    try:
        graph, levels, way = matching_grid(processor, name)
        if way.tokens > GRID_TOKENS:
            processor.limit(way.edges(GRID_TOKENS))
            report(f"images: those that would become more than {GRID_TOKENS:,} tokens ({way.tokens:,} by its settings) are made smaller")
            graph, levels, way = matching_grid(processor, name)
    except ExportError as error:
        raise ExportError(f"{processor.name} makes {processor.varying} of pictures of other sizes, which is not supported ({error})") from error
    grids, reads = grids_of(way.layout.shape, graph, trial_pictures(GRID_SIZES)), processor.samples
    expansion, breaks = processor.without_grid(reads, grids)
    constants = [constants_of_model(each) for each in reads]
    form = GridForm(
        way.layout.shape,
        tuple(formula_of(sizes, grids) for sizes in zip(*(each.pixels[name].shape for each in reads), strict=True)),
        {key: made_of([each[key] for each in constants], grids) for key in constants[0]},
    )
    part = VisionPart(model, processor.token_id, 0, name, {})
    part.form = form
    record = ImageRecord(
        processor.placeholder, expansion, processor.token_id, min(way.tokens, GRID_TOKENS), has_grid=True, row_break_ids=breaks
    )
    samples = [Seen(form.as_split(each.pixels[name], grid), grid) for each, grid in zip(reads, grids, strict=True)]
    return Images(processor, part, record, graph, levels, samples)


def parameters_of_features(model: Any) -> frozenset[str]:  # noqa: ANN401 - a class of transformers
    """Arguments of the method that reads pictures, which `forward` passes on; empty for a model that has none."""
    owner = next((each for each in (model, getattr(model, "base_model", None)) if hasattr(each, "get_image_features")), None)
    return frozenset() if owner is None else frozenset(inspect.signature(owner.get_image_features).parameters) - {"kwargs"}


def with_images(source: Source, images: Images) -> Source:
    """The decoder with the input for the rows of pictures."""
    embedding = cast(nn.Embedding, cast(Any, source.module).get_input_embeddings())
    width = source.geometry.hidden_size
    layers = layers_of(source.module)[: images.part.deeper]
    part = ImagePart(embedding, width, images.record.token_id, embedding.num_embeddings, images.decoder, layers)
    return dataclasses.replace(source, images=part)


def layers_of(module: nn.Module) -> tuple[nn.Module, ...]:
    """The layers of a model's text decoder."""
    return tuple(getattr(cast(Any, module).get_decoder(), "layers", ()))


@dataclasses.dataclass(frozen=True)
class ImageWriter:
    """Writes and proves the graphs that read pictures, next to a decoder that takes their rows."""

    images: Images
    source: Source
    weights: Weights
    options: ExportOptions

    @functools.cached_property
    def proof(self) -> ImageProof:
        """What compares the graphs with PyTorch."""
        images = self.images
        return ImageProof(self.source, self.weights, images.processor, images.part, images.record, images.processor_graph)

    @hinting()
    def write(self, folder: Path) -> None:
        """Write the graphs; a quantised package has a vision part of 8 bits, where that loses little."""
        ir.save(self.images.processor_graph, folder / IMAGE_PROCESSOR_GRAPH)
        model = trace_vision(self.images.part, self.images.samples[0], self.options.target, self.weights)
        run_passes("optimize", model, self.settings())
        forms: Sequence[Quantization | None] = [None]
        if self.options.chosen_precision in {"int8", "int4"}:
            forms = [*(Quantization(8, block_size=size) for size in VISION_BLOCKS), None]
        for form in forms:
            attempt = model.clone()
            run_passes("store", attempt, self.settings(form))
            write_weights(attempt, folder, VISION_WEIGHTS)
            ir.save(attempt, folder / VISION_GRAPH)
            if form is None or self.proof.rows_of(folder)[1] >= ROWS_COSINE[self.options.chosen_precision]:
                return

    def settings(self, form: Quantization | None = None) -> Settings:
        """Settings of the passes for the vision part."""
        precision: Precision = "int8" if form is not None else "fp32"
        return Settings(self.options.target, self.source.geometry.context_length, precision, form, has_cache=False)

    def record(self, folder: Path) -> ImageRecord:
        """What the manifest says of pictures, with golden ones."""
        reader, found = self.proof.reader_of(folder), list[GoldenPicture]()
        for height, width in SIZES:
            rows = reader.read_pixels(golden_picture(height, width)).rows
            found.append(GoldenPicture(height, width, tuple(round(each, 6) for each in numbers_of(rows))))
        tolerance = TOLERANCES[self.options.chosen_precision]
        return dataclasses.replace(self.images.record, golden=tuple(found), tolerance=tolerance)

    @hinting()
    def prove(self, folder: Path, roundings: Roundings | None) -> Proven:
        """Compare a folder with PyTorch from pixels to tokens; raises `ExportError` where they differ too much."""
        return self.proof.prove(folder, self.images.levels, precision=self.options.chosen_precision, roundings=roundings)
