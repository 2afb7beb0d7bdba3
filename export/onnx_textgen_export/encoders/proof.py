"""Proof that the graph of a text encoder computes what PyTorch computes, and the certificate that records it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.encoders.text_encoder import TextEncoder as OpenEncoder
from onnx_textgen.package.manifest import GoldenNumbers, Precision
from onnx_textgen.text.tokenizer import TextTokenizer

from ..errors import ExportError, as_export_error
from ..huggingface.text_encoder import TextEncoder
from ..proof.probe_text import PROBE_TEXT, spread_ids

LONGEST = 2048
"""Most tokens of the longest text that is compared."""
TEXTS = 24
"""Sentences of the probe text that are compared."""
TOGETHER = 8
"""Of them in one run."""
GOLDEN = 3
"""Texts that `verify` reads again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What a precision may lose."""

    error: float
    """Largest difference of a number, relative to the largest one of the output."""
    cosine: float
    """Smallest cosine between the package's vector of a text and PyTorch's."""

    def as_record(self) -> dict[str, float]:
        """As plain data, without a limit that is none."""
        return {name: limit for name, limit in dataclasses.asdict(self).items() if math.isfinite(limit)}

    def in_words(self) -> str:
        """For an error: `the limits of error 0.15, cosine 0.998`."""
        return f"the limits of {', '.join(f'{name} {limit:g}' for name, limit in self.as_record().items())}"

    def admit(self, scenario: Scenario) -> bool:
        """Return whether a scenario is within the limits."""
        return scenario.error <= self.error and scenario.cosine >= self.cosine


LIMITS: dict[Precision, Limits] = {
    "fp32": Limits(1e-4, 1 - 1e-6),
    "fp16": Limits(0.02, 0.999),
    "int8": Limits(0.15, 0.998),
    "int4": Limits(0.6, 0.95),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """Token ids of a text or a pair, and their types."""

    ids: tuple[int, ...]
    types: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """How far a group of texts is from PyTorch."""

    name: str
    tokens: int
    """Of the longest text."""
    texts: int
    error: float
    """See `Limits.error`; over all outputs."""
    cosine: float
    """The smallest cosine of a vector; 1 for scores."""

    def in_words(self) -> str:
        """For an error."""
        return f"{self.name}: error {self.error:.1e}, cosine {self.cosine:.6f}"


def sentences() -> list[str]:
    """The sentences of the probe text."""
    return [each.strip() + "." for each in PROBE_TEXT.replace("\n", " ").split(".") if each.strip()]


def texts_to_read(encoder: TextEncoder, tokenizer: Tokenizer | None, most: int) -> tuple[list[Read], Read]:
    """Sentences, as pairs for a model that scores pairs, and one long text that ends with ids of the whole vocabulary."""
    geometry, given = encoder.geometry, sentences()
    length = min(geometry.context_length, LONGEST)
    if tokenizer is None:
        draw = np.random.default_rng(1)
        reads = [Read(tuple(draw.integers(3, geometry.vocab_size, size).tolist()), ()) for size in range(2, 2 + TEXTS)]
        return reads, Read(tuple(draw.integers(3, geometry.vocab_size, length).tolist()), ())
    ours = TextTokenizer(tokenizer.to_str())
    if ours.vocab_size > geometry.vocab_size:
        raise ExportError(
            f"the tokenizer gives ids up to {ours.vocab_size - 1}, the model has {geometry.vocab_size}; they do not belong together"
        )
    pairs = [(one, other if encoder.scores else None) for one, other in itertools.pairwise(given)]
    reads = [typed(ours.encode_within(most, *pair)) for pair in pairs[:TEXTS]]
    whole, end = ours.encode_within(length, " ".join(given * 3)), spread_ids(geometry.vocab_size, 8)
    ids = [*whole[0][:1], *whole[0][1 : -1 - len(end)], *end, *whole[0][-1:]]
    return reads, Read(tuple(ids[:length]), (0,) * min(length, len(ids)))


def typed(encoded: tuple[list[int], list[int]]) -> Read:
    """The ids and the types of a text."""
    return Read(tuple(encoded[0]), tuple(encoded[1]))


def groups(reads: Sequence[Read], longest: Read) -> Iterator[tuple[str, list[Read]]]:
    """What is compared: texts alone and in company, of all lengths."""
    yield "one text", list(reads[:1])
    yield "two tokens", [Read(longest.ids[:2], longest.types[:2])]
    yield "texts of several lengths together", [*reads[:4], Read(longest.ids[:40], longest.types[:40]), *reads[4:6]]
    for start in range(0, len(reads), TOGETHER):
        yield f"sentences from {start + 1}", list(reads[start : start + TOGETHER])
    yield "a long text", [longest]


class Proof:
    """Compares graphs of a text encoder with PyTorch, which reads each text once."""

    def __init__(self, encoder: TextEncoder, reads: Sequence[Read], longest: Read) -> None:
        self.encoder, self.reads, self.longest = encoder, reads, longest
        self.known: dict[Read, list[npt.NDArray[np.float32]]] = {}
        """PyTorch's outputs."""

    def measure(self, graph: Path) -> tuple[list[Scenario], tuple[GoldenNumbers, ...]]:
        """Measure every scenario, and take the numbers for `verify`; raises `ExportError` for a graph that does not run."""
        encoder, output, measured = self.encoder, self.encoder.outputs[-1], list[Scenario]()
        with as_export_error():
            opened = OpenEncoder(open_session(graph, device="cpu"), encoder.padding_id)
            for name, texts in groups(self.reads, self.longest):
                measured.append(compare(encoder, opened, name, texts, [self.wanted(each) for each in texts]))
            found = [opened.read([each.ids], output, types=types_of(encoder, [each]))[0] for each in self.reads[:GOLDEN]]
        return measured, tuple(golden_of(each, numbers) for each, numbers in zip(self.reads, found, strict=False))

    def wanted(self, read: Read) -> list[npt.NDArray[np.float32]]:
        """PyTorch's outputs for a text."""
        if read not in self.known:
            self.known[read] = [output[0].numpy() for output in self.encoder.reference(read.ids, read.types)]
        return self.known[read]


def refuse_difference(
    measured: Sequence[Scenario], limits: Limits, *, what: str = "the export disagrees with PyTorch", remedy: str = ""
) -> None:
    """Raise `ExportError` where a graph differs from PyTorch by more than the limits; `what` is then the case."""
    for scenario in measured:
        if not limits.admit(scenario):
            raise ExportError(f"{what} ({scenario.in_words()}), so nothing was written{remedy}")


def golden_of(read: Read, numbers: npt.NDArray[np.float32]) -> GoldenNumbers:
    """What the graph gives for a text, for the manifest."""
    return GoldenNumbers(read.ids, tuple(round(float(each), 7) for each in numbers), read.types if any(read.types) else ())


def types_of(encoder: TextEncoder, texts: Sequence[Read]) -> list[Sequence[int]]:
    """The types of texts; empty for a graph that takes none."""
    return [each.types or (0,) * len(each.ids) for each in texts] if encoder.takes_types else []


def compare(
    encoder: TextEncoder, opened: OpenEncoder, name: str, texts: Sequence[Read], wanted: Sequence[list[npt.NDArray[np.float32]]]
) -> Scenario:
    """Read texts together, and compare each with PyTorch's numbers of it alone."""
    error, cosine = 0.0, 1.0
    for place, output in enumerate(encoder.outputs):
        found = opened.read([each.ids for each in texts], output, types=types_of(encoder, texts))
        for text, numbers, each in zip(texts, found, wanted, strict=True):
            own = numbers[: len(text.ids)] if each[place].ndim == 2 else numbers
            largest = max(1.0 if encoder.scores else 1e-9, float(np.abs(each[place]).max()))
            error = max(error, float(np.abs(own - each[place]).max()) / largest)
            if not encoder.scores and each[place].ndim == 1:
                product = float(own @ each[place]) / float(np.linalg.norm(own) * np.linalg.norm(each[place]) + 1e-30)
                cosine = min(cosine, product)
    return Scenario(name, max(len(each.ids) for each in texts), len(texts), error, cosine)


def make_certificate(
    measured: Sequence[Scenario], limits: Limits, *, exact: Sequence[Scenario] = (), size_bytes: int
) -> dict[str, Any]:
    """The certificate for the manifest; `exact`: what was measured of the same graph before its weights were rounded."""
    return {
        "reference": f"PyTorch {torch.__version__}, float32",
        "summary": {
            "size_bytes": size_bytes,
            "cosine": min(each.cosine for each in measured),
            "error": max(each.error for each in measured),
        },
        "longest_text": max(each.tokens for each in measured),
        "tolerance": limits.as_record(),
        **({"before_rounding": {"error": max(each.error for each in exact)}} if exact else {}),
        "scenarios": [dataclasses.asdict(each) for each in measured],
    }
