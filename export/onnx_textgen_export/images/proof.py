"""Proof of a model that reads pictures, from pixels to tokens: each graph alone, and all of them together."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime
import torch
from torch import Tensor

from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.images.image_reader import IMAGE_ROWS, ImageReader
from onnx_textgen.images.image_rows import ReadImage
from onnx_textgen.images.pictures import PICTURE
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.graph_runner import Logits
from onnx_textgen.package.manifest import IMAGE_PROCESSOR_GRAPH, VISION_GRAPH, ImageRecord, Precision

from ..errors import ExportError, as_export_error
from ..huggingface.probed_model import attention_as
from ..layers.encoder_attention import OWN
from ..passes.quantization.rounding import Roundings
from ..proof.measures import Scenario, compare
from ..proof.same_weights import opened_for_proof
from ..proof.scenarios import feed_in_pieces, feed_ragged
from ..sources.source import Source
from ..weights.streamed import Weights
from .pixel_steps import Normalization, processor_graph, steps_of
from .processors import Pixels, Processor, Read, trial_pictures
from .vision import VisionPart

SIZES = ((64, 48), (33, 90), (480, 640), (700, 200), (224, 224), (17, 11))
"""Heights and widths of the pictures that processors are compared on."""
MOST_LEVELS, MEAN_LEVELS = 3.0, 0.2
"""How far a number may be from transformers', in levels of a pixel, of which there are 256; each resize rounds to a level."""
ROWS_COSINE = {"fp32": 1 - 1e-6, "fp16": 0.999, "int8": 0.995, "int4": 0.995}
"""Smallest cosine between a row and transformers' for the same numbers."""
GREEDY_TOKENS = 48
FEW = 9
"""Text tokens around pictures."""


def matching_graph(processor: Processor, shape: Sequence[int], name: str, last: Normalization) -> tuple[ir.Model, float]:
    """The graph of an image processor, and its largest difference from transformers' in levels of a pixel.

    Raises `ExportError` if no order of the known steps computes what the processor does.
    """
    pictures = trial_pictures(SIZES)
    wanted = [processor.read(each).pixels[name].numpy() for each in pictures]
    best, reason = float("inf"), "its settings name no size"
    for steps in steps_of(processor.settings):
        try:
            model = processor_graph(steps, last, name, shape)
            found = run_processor(model, pictures)
        except Exception as error:  # noqa: BLE001 - of an order of steps that does not give the shape
            reason = f"{error!s:.100}".splitlines()[0]
            continue
        largest, mean = levels(found, wanted, last)
        if largest <= MOST_LEVELS and mean <= MEAN_LEVELS:
            return model, largest
        best = min(best, largest)
    if best < float("inf"):
        reason = f"the nearest differs by {best:.0f} levels of 255"
    raise ExportError(f"no known order of steps computes what {processor.name} does ({reason})")


def run_processor(model: ir.Model, pictures: Sequence[Pixels]) -> list[npt.NDArray[np.float32]]:
    """What a processor's graph makes of pictures."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [session.run(None, {PICTURE: each})[0] for each in pictures]


def levels(
    found: Sequence[npt.NDArray[np.float32]], wanted: Sequence[npt.NDArray[np.float32]], last: Normalization
) -> tuple[float, float]:
    """The largest and the mean difference in levels of a pixel."""
    level = np.reshape(np.array(last.deviation) / last.scale, (-1, 1, 1))
    differences = [np.abs(one - other) * level for one, other in zip(found, wanted, strict=True)]
    return max(float(each.max()) for each in differences), float(np.mean([each.mean() for each in differences]))


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

    def __init__(self, source: Source, weights: Weights, processor: Processor, part: VisionPart, record: ImageRecord) -> None:
        self.source, self.weights, self.processor, self.part, self.record = source, weights, processor, part, record
        self.pictures = trial_pictures(SIZES[:3])

    @functools.cached_property
    def reads(self) -> list[Read]:
        """What transformers' processor makes of the pictures."""
        return [self.processor.read(each) for each in self.pictures]

    @functools.cached_property
    def wanted_rows(self) -> list[npt.NDArray[np.float32]]:
        """transformers' rows of the pictures."""
        with self.weights.present():
            return [np.array(self.part.rehearse(tuple(read.pixels.values())).numpy()) for read in self.reads]

    def prove(self, folder: Path, levels_apart: float, *, precision: Precision, roundings: Roundings | None) -> Proven:
        """Compare rows, logits and greedy tokens; raises `ExportError` where they differ too much."""
        error, cosine = self.rows_of(folder)
        if cosine < ROWS_COSINE[precision]:
            raise ExportError(f"the rows of pictures disagree with PyTorch's (cosine {cosine:.6f}), so nothing was written")
        opened = opened_for_proof(self.source, folder / "model.onnx", precision=precision, roundings=roundings)
        with as_export_error(), opened as (session, changes, tolerance), self.weights.present(changes):
            known = self.reader_of(folder).rows
            reads = self.reads
            images = [ReadImage(bytes([number]), rows) for number, rows in enumerate(self.wanted_rows)]
            for image in images:
                known.keep(image)

            def decoder(rows: int = 1) -> Decoder:
                return Decoder(session, self.source.geometry, rows=rows, images=known)

            scenarios = [compare(name, got, want, [None] * len(got)) for name, got, want in self.runs(decoder, images, reads)]
            for each in scenarios:
                if not tolerance.accepts(each):
                    raise ExportError(
                        f"with pictures the export disagrees with PyTorch ({each.in_words()}), so nothing was written; {BOTH_WAYS}"
                    )
            count = self.compare_greedy(decoder(), images[0], reads[0], tolerance.logits_error)
        return Proven(levels_apart, error, cosine, tuple(scenarios), count)

    @property
    def width(self) -> int:
        """Of a row."""
        assert self.source.images is not None, "the decoder reads pictures"
        return self.source.images.width

    def reader_of(self, folder: Path) -> ImageReader:
        """The graphs of a folder; raises `ExportError` if they do not fit the decoder."""
        with as_export_error():
            processor, vision = (open_session(folder / name, device="cpu") for name in (IMAGE_PROCESSOR_GRAPH, VISION_GRAPH))
            return ImageReader(processor, vision, self.record, self.width)

    def rows_of(self, folder: Path) -> tuple[float, float]:
        """The largest error of a folder's rows relative to the largest number, and the smallest cosine."""
        vision, error, cosine = open_session(folder / VISION_GRAPH, device="cpu"), 0.0, 1.0
        for read, want in zip(self.reads, self.wanted_rows, strict=True):
            (got,) = vision.ort.run([IMAGE_ROWS], {name: value.numpy() for name, value in read.pixels.items()})
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

    def runs(
        self,
        decoder: Callable[..., Decoder],
        images: Sequence[ReadImage],
        reads: Sequence[Read],
    ) -> list[tuple[str, Logits, Logits]]:
        """Ways of feeding texts with pictures: name, the package's logits, and PyTorch's."""
        one, two, three = self.texts()
        single = [*one, *images[0].ids, *two]
        double = [*one, *images[1].ids, *two, *images[2].ids, *three]
        room = self.source.geometry.context_length
        want = self.reference(single, images, reads)
        found = [
            ("a picture in one run", decoder().feed(single, every_position=True), want),
            ("a picture in pieces", feed_in_pieces(decoder(), single), want),
        ]
        if len(double) <= room:
            found.append(("two pictures", decoder().feed(double, every_position=True), self.reference(double, images, reads)))
        rows = [single, [*two, *three], single[:-2]]
        got = feed_ragged(decoder(3), rows, 3)
        for row, logits in zip(rows, got, strict=True):
            found.append(("rows with and without pictures", logits, self.reference(row, images, reads)))
        return found

    def reference(self, ids: Sequence[int], images: Sequence[ReadImage], reads: Sequence[Read]) -> Logits:
        """PyTorch's logits [tokens, vocabulary] of ids with pictures, by the model's own forward."""
        plain, used = list[int](), list[Read]()
        for each in ids:
            place = next((place for place, image in enumerate(images) if each == image.ids[0]), None) if each < 0 else None
            if place is not None:
                used.append(reads[place])
            plain.append(each if each >= 0 else self.record.token_id)
        if not used:
            with torch.no_grad():
                return np.array(self.source.reference(torch.tensor([plain]))[0].numpy())
        given = {name: torch.cat([read.pixels[name] for read in used]) for name in used[0].pixels}
        given |= self.constants(plain, used)
        model: Any = self.source.module
        with torch.no_grad(), attention_as(model, OWN):
            logits = model(input_ids=torch.tensor([plain]), use_cache=False, **given).logits
        return np.array(logits[0].float().numpy())

    def constants(self, ids: Sequence[int], used: Sequence[Read]) -> dict[str, Tensor]:
        """What else the model takes: of each picture, and of each token of a text."""
        found = dict[str, Tensor]()
        for name, value in used[0].constants.items():
            if name in {"input_ids", "attention_mask"}:
                continue
            if value.dim() == 2 and value.shape == (1, self.sample_length()):  # of each token: whether it is of a picture
                found[name] = (torch.tensor([list(ids)]) == self.record.token_id).to(value.dtype)
            else:
                found[name] = torch.cat([read.constants[name] for read in used])
        return found

    def sample_length(self) -> int:
        """Tokens of the text of which the processor made its constants."""
        return int(self.processor.sample.constants["input_ids"].shape[1])

    def compare_greedy(self, decoder: Decoder, image: ReadImage, read: Read, margin: float) -> int:
        """Continue a text with a picture greedily; raises `ExportError` for a token that PyTorch ranks clearly below another.

        The token that stands for a row of a picture is none: PyTorch would look for the picture.
        """
        one, two, _ = self.texts()
        possible = np.arange(self.source.geometry.vocab_size) != self.record.token_id
        ids, made = [*one, *image.ids, *two], list[int]()
        room = self.source.geometry.context_length - len(ids) - 1
        logits = decoder.feed(ids)[-1]
        for _ in range(min(GREEDY_TOKENS, room)):
            made.append(int(np.where(possible, logits, -np.inf).argmax()))
            logits = decoder.feed([made[-1]])[-1]
        want = self.reference([*ids, *made[:-1]], [image], [read])[len(ids) - 1 :]
        behind = want[:, possible].max(axis=1) - want[np.arange(len(made)), made]
        if len(wrong := np.flatnonzero(behind > margin * np.abs(want).max())):
            raise ExportError(f"greedy token {wrong[0] + 1} after a picture is not PyTorch's, so nothing was written")
        return len(made)


BOTH_WAYS = "its decoder may read the tokens of a picture in both directions, or count their positions otherwise"


def constants_of_model(read: Read) -> Mapping[str, Tensor]:
    """What a vision part takes besides the numbers of a picture: nothing that belongs to the tokens of a text."""
    length = read.constants["input_ids"].shape[1]
    return {
        name: value
        for name, value in read.constants.items()
        if name not in {"input_ids", "attention_mask"} and not (value.dim() == 2 and value.shape == (1, length))
    }
