"""The part of an export that reads pictures: opened before the decoder is traced, written and proved after it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import onnx_ir as ir
from torch import nn

from onnx_textgen.images.golden import SIZES, golden_picture, numbers_of
from onnx_textgen.package.manifest import (
    IMAGE_PROCESSOR_GRAPH,
    VISION_GRAPH,
    VISION_WEIGHTS,
    WASM_GRAPH,
    GoldenPicture,
    ImageRecord,
    Precision,
)

from ..extra_graphs.picture_graphs import write_picture_graphs
from ..extra_graphs.shared_graph import opens_elsewhere, reads_pictures_elsewhere
from ..extra_graphs.wasm_graph import write_wasm_graph
from ..images.opening import Images, hinting
from ..images.proof import ROWS_COSINE, ImageProof, Proven
from ..images.tracing import trace_vision
from ..package.other_runtimes import write_picture_settings
from ..package.writer import write_weights
from ..passes.order import Settings, run_passes
from ..passes.quantization.options import Quantization
from ..passes.quantization.rounding import Roundings
from ..sources.image_rows import ImagePart
from ..sources.source import Source
from ..tokenization.text_assets import TextAssets
from ..weights.streamed import Weights
from .options import ExportOptions

VISION_BLOCKS = (64, 32, 16)
"""Blocks of the codes of 8 bits in which a quantised package stores its vision part, the largest first."""
TOLERANCES: dict[Precision, float] = {"fp32": 1e-3, "fp16": 0.02, "int8": 0.05, "int4": 0.05}
"""How far the numbers of golden pictures may be from the export's on another processor, by precision."""


def with_images(source: Source, images: Images) -> Source:
    """The decoder with the input for the rows of pictures."""
    embedding = cast(nn.Embedding, cast(Any, source.module).get_input_embeddings())
    width = source.geometry.hidden_size
    layers = layers_of(source.module)[: images.part.deeper]
    record = images.record
    part = ImagePart(
        embedding,
        width,
        record.token_id,
        embedding.num_embeddings,
        images.decoder,
        record.tile_tokens if written_in_one_run(images) else 0,
        record.bidirectional,
        layers,
    )
    return dataclasses.replace(source, images=part)


def written_in_one_run(images: Images) -> bool:
    """Return whether each whole picture is written as the same number of one token, with nothing between them."""
    record, token = images.whole, str(images.processor.tokenizer.convert_ids_to_tokens(images.record.token_id))
    return not record.has_grid and record.expansion.count(token) == record.tokens and token * record.tokens in record.expansion


def layers_of(module: nn.Module) -> tuple[nn.Module, ...]:
    """The layers of a model's text decoder."""
    return tuple(getattr(cast(Any, module).get_decoder(), "layers", ()))


@dataclasses.dataclass(frozen=True)
class ImageWriter:
    """Writes and proves the graphs that read pictures, next to a decoder that takes their rows."""

    images: Images
    source: Source
    weights: Weights
    assets: TextAssets
    options: ExportOptions

    @functools.cached_property
    def proof(self) -> ImageProof:
        """What compares the graphs with PyTorch."""
        return ImageProof(self.source, self.weights, self.images)

    @hinting()
    def write(self, folder: Path) -> None:
        """Write the graphs; a quantised package has a vision part of 8 bits, where that loses little."""
        tiling = self.images.tiling
        ir.save(self.images.processor_graph if tiling is None else tiling.graph, folder / IMAGE_PROCESSOR_GRAPH)
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
                break

    def write_for_others(self, folder: Path, roundings: Roundings | None) -> None:
        """Write the graphs by which transformers.js reads pictures, if it can; raises `ExportError` if they are not equal."""
        source, assets = self.source, self.assets
        if not (self.options.other_runtimes and opens_elsewhere(source, assets) and reads_pictures_elsewhere(source)):
            return
        decoder = write_picture_graphs(folder, self.images.processor_graph.clone())
        if (folder / WASM_GRAPH).exists():  # of the text alone, which no class of transformers.js takes for such a package
            write_wasm_graph(folder, decoder)
        write_picture_settings(folder, decoder, assets, self.images.whole)
        arithmetic = roundings.arithmetic if roundings is not None else self.options.chosen_precision
        self.proof.compare_for_others(folder, decoder, arithmetic)

    def settings(self, form: Quantization | None = None) -> Settings:
        """Settings of the passes for the vision part."""
        precision: Precision = "int8" if form is not None else "fp32"
        return Settings(self.options.target, self.source.geometry.context_length, precision, form, has_cache=False)

    def record(self, folder: Path) -> ImageRecord:
        """What the manifest says of pictures, with golden ones."""
        reader, found = self.proof.reader_of(folder), list[GoldenPicture]()
        for height, width in SIZES:
            rows = reader.read_pixels(golden_picture(height, width)).rows()
            found.append(GoldenPicture(height, width, tuple(round(each, 6) for each in numbers_of(rows))))
        tolerance = TOLERANCES[self.options.chosen_precision]
        return dataclasses.replace(self.images.record, golden=tuple(found), tolerance=tolerance)

    @hinting()
    def prove(self, folder: Path, roundings: Roundings | None) -> Proven:
        """Compare a folder with PyTorch from pixels to tokens; raises `ExportError` where they differ too much."""
        levels = [self.images.levels, *([self.images.tiling.levels] if self.images.tiling else [])]
        return self.proof.prove(folder, max(levels), precision=self.options.chosen_precision, roundings=roundings)
