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
import torch
from torch import nn

from onnx_textgen.images.golden import SIZES, golden_picture, numbers_of
from onnx_textgen.package.manifest import (
    IMAGE_PROCESSOR_GRAPH,
    MOST_IMAGE_TOKENS,
    VISION_GRAPH,
    VISION_WEIGHTS,
    GoldenPicture,
    ImageRecord,
    Precision,
)

from ..errors import ExportError
from ..images.pixel_steps import normalization_of
from ..images.processors import Processor, has_processor, open_processor
from ..images.proof import ROWS_COSINE, ImageProof, Proven, constants_of_model, matching_graph
from ..images.tracing import trace_vision
from ..images.vision import VisionPart, open_vision
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
def open_images(module: nn.Module, weights: Weights, folder: Path | None, report: Report) -> Images | None:
    """What reads the pictures of a checkpoint; None if it does not say how. Raises `ExportError` if that cannot be exported."""
    if folder is None or not folder.is_dir() or not has_processor(folder):
        report("images: nothing says how the source reads pictures (preprocessor_config.json), so the package reads text alone")
        return None
    report("images")
    model: Any = module
    token_id = cast(int, token_of_images(model.config))
    takes = frozenset(inspect.signature(model.forward).parameters) | parameters_of_features(model)
    processor = open_processor(folder, model.config, takes, token_id)
    sample = processor.sample
    ids = torch.tensor([processor.tokenizer(sample.expansion, add_special_tokens=False)["input_ids"]])
    tokens = ids[ids == token_id][None]
    if not 1 <= tokens.shape[1] <= MOST_IMAGE_TOKENS:
        raise ExportError(f"a picture becomes {tokens.shape[1]:,} tokens, and at most {MOST_IMAGE_TOKENS:,} are supported")
    with weights.present():
        part = open_vision(model, tokens, sample.pixels, constants_of_model(sample))
    if len(sample.pixels) > 1:
        raise ExportError(f"{processor.name} makes more than one tensor of a picture ({', '.join(sample.pixels)})")
    ((name, pixels),) = sample.pixels.items()
    graph, levels = matching_graph(processor, list(pixels.shape), name, normalization_of(processor.settings))
    if processor.switches:
        report("images: read as a whole, without tiles, so that each becomes as many tokens")
    record = ImageRecord(processor.placeholder, sample.expansion, token_id, tokens.shape[1])
    return Images(processor, part, record, graph, levels)


def parameters_of_features(model: Any) -> frozenset[str]:  # noqa: ANN401 - a class of transformers
    """Arguments of the method that reads pictures, which `forward` passes on; empty for a model that has none."""
    owner = next((each for each in (model, getattr(model, "base_model", None)) if hasattr(each, "get_image_features")), None)
    return frozenset() if owner is None else frozenset(inspect.signature(owner.get_image_features).parameters) - {"kwargs"}


def with_images(source: Source, images: Images) -> Source:
    """The decoder with the input for the rows of pictures."""
    embedding = cast(nn.Embedding, cast(Any, source.module).get_input_embeddings())
    width = source.geometry.hidden_size
    return dataclasses.replace(
        source, images=ImagePart(embedding, width, images.record.token_id, vocab_size=embedding.num_embeddings)
    )


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
        return ImageProof(self.source, self.weights, images.processor, images.part, images.record)

    @hinting()
    def write(self, folder: Path) -> None:
        """Write the graphs; a quantised package has a vision part of 8 bits, where that loses little."""
        ir.save(self.images.processor_graph, folder / IMAGE_PROCESSOR_GRAPH)
        pixels = tuple(self.images.processor.sample.pixels.values())
        model = trace_vision(self.images.part, pixels, self.options.target, self.weights)
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
