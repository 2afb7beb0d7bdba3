"""Proof of a model that reads pictures, from pixels to tokens: each graph alone, and all of them together."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from torch import Tensor

from onnx_textgen.backends.onnxruntime_session import OnnxRuntimeSession, open_session
from onnx_textgen.images.image_reader import IMAGE_ROWS, ImageReader
from onnx_textgen.images.image_rows import ReadImage
from onnx_textgen.images.in_messages import placed
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.graph_runner import Logits
from onnx_textgen.package.manifest import (
    EMBED_GRAPH,
    GRAPH,
    IMAGE_PROCESSOR_GRAPH,
    VISION_ENCODER_GRAPH,
    VISION_GRAPH,
    WASM_GRAPH,
    Precision,
    TileText,
)

from ..errors import ExportError, as_export_error
from ..extra_graphs.picture_graphs import EMBEDS, NO_ID, PIXELS
from ..huggingface.probed_model import attention_as
from ..image_processors.matching import SIZES, grids_of
from ..image_processors.processors import FILLING, GRID_SIZES, PLAIN, Pixels, Read, trial_pictures
from ..layers.encoder_attention import OWN
from ..passes.quantization.rounding import Roundings
from ..proof.measures import TOLERANCES, Scenario, compare
from ..proof.other_graphs import check_equal, open_unpacked
from ..proof.same_weights import in_float32, opened_for_proof
from ..proof.scenarios import feed_in_pieces, feed_ragged
from ..sources.source import Source
from ..weights.streamed import Weights
from .opening import Images
from .vision import Seen

ROWS_COSINE = {"fp32": 1 - 1e-6, "fp16": 0.999, "int8": 0.995, "int4": 0.995}
"""Smallest cosine between a row and transformers' for the same numbers."""
ALIKE = 0.05
"""Largest difference of numbers in rows that equal weights gave: in a body, ONNX Runtime does not round activations of products."""
GREEDY_TOKENS = 48
LARGER = (640, 520)
"""Of a picture with more lines and columns than those by which the formulas of grids were found."""
STEPS = 3
"""Tokens after a prompt with a picture, which are fed one by one."""
FEW = 9
"""Text tokens around pictures."""


@dataclasses.dataclass(frozen=True, slots=True)
class Proven:
    """What the proof of pictures measured, for the certificate."""

    processor_levels: float
    rows_error: float
    rows_cosine: float
    scenarios: tuple[Scenario, ...]
    greedy_tokens: int

    def as_record(self) -> dict[str, Any]:
        """Entries of the certificate."""
        numbers = dataclasses.asdict(self)
        return {"with_pictures": list(numbers.pop("scenarios")), "pictures": numbers}


class ImageProof:
    """Compares the graphs of a finished folder with transformers."""

    def __init__(self, source: Source, weights: Weights, images: Images) -> None:
        self.source, self.weights, self.images = source, weights, images
        self.processor, self.part, self.record = images.processor, images.part, images.record
        self.tiling = images.tiling
        sizes = SIZES[:3] if self.part.form is None else [*GRID_SIZES[:3], LARGER]
        self.pictures = trial_pictures(sizes) if self.tiling is None else self.tiling.small

    @functools.cached_property
    def reads(self) -> list[Read]:
        """What transformers' processor makes of the pictures."""
        return [self.processor.read(each) for each in self.pictures]

    @functools.cached_property
    def seen(self) -> list[list[Seen]]:
        """The same as the vision part takes it, one for each tile of a picture."""
        return seen_by(self.images, self.reads, self.pictures)

    @functools.cached_property
    def wanted_rows(self) -> list[npt.NDArray[np.float32]]:
        """transformers' rows of the pictures."""
        with self.weights.present():
            return [np.concatenate([self.part.run(each).numpy() for each in tiles]) for tiles in self.seen]

    def prove(self, folder: Path, levels_apart: float, *, precision: Precision, roundings: Roundings | None) -> Proven:
        """Compare rows, logits and greedy tokens; raises `ExportError` where they differ too much."""
        error, cosine = self.rows_of(folder)
        if cosine < ROWS_COSINE[precision]:
            raise ExportError(f"the rows of pictures disagree with PyTorch's (cosine {cosine:.6f}), so nothing was written")
        opened = opened_for_proof(self.source, folder / "model.onnx", precision=precision, roundings=roundings)
        with as_export_error(), opened as (session, changes, tolerance), self.weights.present(changes):
            known = self.reader_of(folder).rows
            images = [
                ReadImage(bytes([number]), rows, seen[0].grid, self.record.row_break_ids, self.tiles_of(seen))
                for number, (rows, seen) in enumerate(zip(self.wanted_rows, self.seen, strict=True))
            ]
            for image in images:
                known.keep(image)

            def decoder(rows: int = 1) -> Decoder:
                return Decoder(session, self.source.geometry, rows=rows, images=known)

            scenarios = [compare(name, got, want, [None] * len(got)) for name, got, want in self.runs(decoder, images)]
            for each in scenarios:
                if not tolerance.accepts(each):
                    raise ExportError(
                        f"with pictures the export disagrees with PyTorch ({each.in_words()}), so nothing was written; {BOTH_WAYS}"
                    )
            count = self.compare_greedy(decoder(), images, tolerance.logits_error)
        return Proven(levels_apart, error, cosine, tuple(scenarios), count)

    def compare_for_others(self, folder: Path, decoder: str, arithmetic: Precision) -> None:
        """Compare the graphs by which others read pictures with the package's own; raises `ExportError` where they differ.

        arithmetic: of the package's activations, whose limits apply.
        """
        one, two, _ = self.texts()
        pixels = self.pictures[0]
        with as_export_error():
            own = self.reader_of_whole(folder)
            image = own.read_pixels(pixels)
            ids = np.array([[*one, *image.ids, *two]])
            embed, vision = (open_session(folder / name, device="cpu").ort for name in (EMBED_GRAPH, VISION_ENCODER_GRAPH))
            (rows,) = vision.run(None, {PIXELS: pixels.transpose(2, 0, 1)[None].astype(np.float32)})
            (given,) = embed.run(None, {"input_ids": np.where(ids < 0, self.record.token_id, ids)})
            given[ids < 0] = np.pad(image.rows(), ((0, 0), (1, 0)), constant_values=NO_ID)
            check_equal(VISION_ENCODER_GRAPH, rows[0], given[ids < 0], ALIKE)

            def logits_of(session: OnnxRuntimeSession) -> Logits:
                decoder = Decoder(session, self.source.geometry, images=own.rows)
                first, *steps = parts_of(ids[0].tolist())
                return np.concatenate([decoder.feed(first), *(decoder.feed(each) for each in steps)])

            want, limit = logits_of(open_session(folder / GRAPH, device="cpu")), TOLERANCES[arithmetic].logits_error
            check_equal(decoder, logits_after(open_session(folder / decoder, device="cpu"), given), want, limit)
            if (wasm := folder / WASM_GRAPH).exists():
                with in_float32(folder / GRAPH) as session:
                    want = logits_of(session)
                check_equal(WASM_GRAPH, logits_after(open_unpacked(wasm), given), want, TOLERANCES["fp32"].logits_error)

    @property
    def width(self) -> int:
        """Of a row."""
        assert self.source.images is not None, "the decoder reads pictures"
        return self.source.images.row_width

    def reader_of(self, folder: Path) -> ImageReader:
        """The graphs of a folder; raises `ExportError` if they do not fit the decoder."""
        with as_export_error():
            processor, vision = (open_session(folder / name, device="cpu") for name in (IMAGE_PROCESSOR_GRAPH, VISION_GRAPH))
            return ImageReader(processor, vision, self.record, self.width)

    def reader_of_whole(self, folder: Path) -> ImageReader:
        """The same, which reads each picture as a whole."""
        if self.tiling is None:
            return self.reader_of(folder)
        with tempfile.TemporaryDirectory() as work:
            ir.save(self.images.processor_graph, graph := Path(work) / IMAGE_PROCESSOR_GRAPH)
            processor, vision = open_session(graph, device="cpu"), open_session(folder / VISION_GRAPH, device="cpu")
        return ImageReader(processor, vision, self.images.whole, self.width)

    def tiles_of(self, seen: Sequence[Seen]) -> TileText | None:
        """A way to cut a picture into as many tiles."""
        return next((each for each in self.record.tiles if each.tiles == len(seen)), None)

    def in_text(self, image: ReadImage) -> list[int]:
        """What a text has of a picture."""
        if image.tiles is None:
            return list(image.ids)
        ids = self.processor.tokenizer(image.tiles.text, add_special_tokens=False)["input_ids"]
        return placed(ids, [image], self.record)

    def rows_of(self, folder: Path) -> tuple[float, float]:
        """The largest error of a folder's rows relative to the largest number, and the smallest cosine."""
        vision, error, cosine = open_session(folder / VISION_GRAPH, device="cpu"), 0.0, 1.0
        for tiles, want in zip(self.seen, self.wanted_rows, strict=True):
            made = [vision.ort.run([IMAGE_ROWS], {self.part.name: each.pixels.numpy()})[0] for each in tiles]
            got = np.concatenate(made).reshape(want.shape)
            error = max(error, float(np.abs(got - want).max() / np.abs(want).max()))
            products = (got * want).sum(1) / (np.linalg.norm(got, axis=1) * np.linalg.norm(want, axis=1) + 1e-30)
            cosine = min(cosine, float(products.min()))
        return error, cosine

    def texts(self) -> list[list[int]]:
        """A few ids of text; none is that of a picture's tokens."""
        draw = np.random.default_rng(3)
        vocabulary = self.source.geometry.vocab_size
        made = draw.integers(3, vocabulary, (3, FEW))
        return np.where(made == self.record.token_id, 2, made).tolist()  # type: ignore[no-any-return]

    def runs(self, decoder: Callable[..., Decoder], images: Sequence[ReadImage]) -> list[tuple[str, Logits, Logits]]:
        """Ways of feeding texts with pictures: name, the package's logits, and PyTorch's."""
        one, two, three = self.texts()
        single = [*one, *self.in_text(images[0]), *two]
        double = [*one, *self.in_text(images[1]), *two, *self.in_text(images[2]), *three]
        room = self.source.geometry.context_length
        want = self.reference(single, images)
        found = [
            ("a picture in one run", decoder().feed(single, every_position=True), want),
            ("a picture in pieces", feed_in_pieces(decoder(), single), want),
        ]
        if len(double) <= room:
            found.append(("two pictures", decoder().feed(double, every_position=True), self.reference(double, images)))
        rows = [single, [*two, *three], single[:-2]]
        got = feed_ragged(decoder(3), rows, 3)
        for row, logits in zip(rows, got, strict=True):
            found.append(("rows with and without pictures", logits, self.reference(row, images)))
        return found

    def reference(self, ids: Sequence[int], images: Sequence[ReadImage]) -> Logits:
        """PyTorch's logits [tokens, vocabulary] of ids with pictures, by the model's own forward."""
        first = {image.ids[0]: number for number, image in enumerate(images)}
        used = tuple(first[each] for each in ids if each in first)
        plain = torch.tensor([[each if each >= 0 else self.record.token_id for each in ids]])
        if not used:
            with torch.no_grad():
                return np.array(self.source.reference(plain)[0].numpy())
        model: Any = self.source.module
        with torch.no_grad(), attention_as(model, OWN):
            logits = model(input_ids=plain, use_cache=False, **self.given(plain, used)).logits
        return np.array(logits[0].float().numpy())

    def given(self, ids: Tensor, used: tuple[int, ...]) -> dict[str, Tensor]:
        """What transformers' processor gives the model for some of the pictures in a text."""
        processor = self.processor
        made = processor.call(FILLING + processor.placeholder * len(used), *(self.pictures[each] for each in used))
        tokens = made["input_ids"].shape
        found = dict[str, Tensor]()
        for name, value in made.items():
            if name not in processor.takes or name in PLAIN:
                continue
            is_of_tokens = value.shape == tokens  # whether each token is of a picture
            found[name] = (ids == self.record.token_id).to(value.dtype) if is_of_tokens else value
        return found

    def compare_greedy(self, decoder: Decoder, images: Sequence[ReadImage], margin: float) -> int:
        """Continue a text with a picture greedily; raises `ExportError` for a token that PyTorch ranks clearly below another.

        The token that stands for a row of a picture is none: PyTorch would look for the picture.
        """
        one, two, _ = self.texts()
        possible = np.arange(self.source.geometry.vocab_size) != self.record.token_id
        ids, made = [*one, *self.in_text(images[0]), *two], list[int]()
        room = self.source.geometry.context_length - len(ids) - 1
        logits = decoder.feed(ids)[-1]
        for _ in range(min(GREEDY_TOKENS, room)):
            made.append(int(np.where(possible, logits, -np.inf).argmax()))
            logits = decoder.feed([made[-1]])[-1]
        want = self.reference([*ids, *made[:-1]], images)[len(ids) - 1 :]
        behind = want[:, possible].max(axis=1) - want[np.arange(len(made)), made]
        if len(wrong := np.flatnonzero(behind > margin * np.abs(want).max())):
            raise ExportError(f"greedy token {wrong[0] + 1} after a picture is not PyTorch's, so nothing was written")
        return len(made)


def parts_of(tokens: Any) -> list[Any]:  # noqa: ANN401 - a list, or an array along its first axis
    """A prompt, and its last tokens one by one."""
    return [tokens[:-STEPS], *(tokens[place : place + 1] for place in range(len(tokens) - STEPS, len(tokens)))]


def logits_after(session: OnnxRuntimeSession, given: npt.NDArray[np.float32]) -> Logits:
    """Logits [1 + STEPS, vocabulary] of a decoder that takes embeddings [1, tokens, width], after these parts of them."""
    pasts = [each for each in session.ort.get_inputs() if each.name.startswith("past_")]
    cache = {
        each.name: np.zeros(
            [1, *(size if isinstance(size, int) else 0 for size in each.shape[1:])], np.float16 if "16" in each.type else np.float32
        )
        for each in pasts
    }
    names, found, fed = ["logits", *(each.name.replace("past_key_values", "present") for each in pasts)], list[Logits](), 0
    for part in parts_of(given[0]):
        fed += len(part)
        logits, *presents = session.ort.run(names, cache | {EMBEDS: part[None], "attention_mask": np.ones((1, fed), np.int64)})
        cache = {each.name: present for each, present in zip(pasts, presents, strict=True)}
        found.append(np.asarray(logits[0, -1], np.float32))
    return np.stack(found)


def seen_by(images: Images, reads: Sequence[Read], pictures: Sequence[Pixels]) -> list[list[Seen]]:
    """What a processor made of pictures, as a vision part takes it, one for each tile."""
    form, numbers, (sample, *_) = images.part.form, [read.pixels[images.part.name] for read in reads], images.samples
    if form is None:
        return [[Seen(tile) for tile in each.reshape(-1, *sample.pixels.shape)] for each in numbers]
    grids = grids_of(form.split, images.processor_graph, pictures)
    return [[Seen(form.as_split(each, grid), grid)] for each, grid in zip(numbers, grids, strict=True)]


BOTH_WAYS = "its decoder may read the tokens of a picture in both directions, or count their positions otherwise"
