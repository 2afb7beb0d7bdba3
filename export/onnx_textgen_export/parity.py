"""Proof that an export computes what PyTorch computes: the parity certificate.

The package is run by the runtime itself, over its real cache, and every logits row is compared with the source's own, uncached
PyTorch forward: a whole prompt, token by token, several tokens over a past, a ragged batch, and far enough to pass a sliding
window. Then greedy continuations are compared token by token; they become the golden runs that `verify` replays without torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from onnx_textgen.artifact import GoldenRun, Precision
from onnx_textgen.decoder import Decoder, Logits, prefill
from onnx_textgen.session import Session

from .errors import ExportError
from .sources import Source

WHOLE_LENGTH = 48
GOLDEN_TOKENS = 32
LONGEST_WINDOW_TRIED = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """What an export at some precision must reach."""

    logits_error: float
    """Largest difference of a logit, relative to the largest magnitude among the reference's logits."""
    top1_agreement: float
    """Share of positions at which both put the same token first, ties within the logits error left out."""
    kl_divergence: float
    """Mean divergence of the package's distribution from PyTorch's, in nats per token."""


TOLERANCES: dict[Precision, Tolerance] = {
    "fp32": Tolerance(logits_error=1e-4, top1_agreement=1.0, kl_divergence=1e-6),
    "int8": Tolerance(logits_error=0.1, top1_agreement=0.95, kl_divergence=0.005),
    "int4": Tolerance(logits_error=0.5, top1_agreement=0.75, kl_divergence=0.2),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """One way of feeding tokens, and how far its logits were from PyTorch's."""

    name: str
    tokens: int
    logits_error: float
    top1_agreement: float
    kl_divergence: float
    perplexity_change: float
    """Relative change of the perplexity on the fed text; 0.01 is one per cent worse."""


def reference_logits(source: Source, ids: list[int]) -> Logits:
    """PyTorch's logits [tokens, vocabulary] of a whole text, without a cache."""
    with torch.no_grad():
        return np.asarray(source.reference(torch.tensor([ids]))[0].float().numpy())


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """log softmax over the last axis in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def compare(name: str, got: Logits, want: Logits, targets: list[int | None]) -> Scenario:
    """Measure logits [tokens, vocabulary] against PyTorch's; `targets` are the tokens that really followed."""
    error = float(np.abs(got - want).max() / np.abs(want).max())
    if not np.isfinite(got).all():
        error = float("inf")
    margin = np.sort(want, axis=1)[:, -1] - np.take_along_axis(want, got.argmax(1)[:, None], axis=1)[:, 0]
    agrees = margin <= 2e-6 * np.abs(want).max()  # a tie in float32 is no disagreement
    log_got, log_want = log_softmax(got), log_softmax(want)
    divergence = float((np.exp(log_want) * (log_want - log_got)).sum(axis=1).mean())
    scored = [(row, target) for row, target in enumerate(targets) if target is not None]
    change = np.mean([log_want[row, target] - log_got[row, target] for row, target in scored]) if scored else 0.0
    return Scenario(name, len(got), error, float(agrees.mean()), max(divergence, 0.0), float(np.expm1(change)))


def followers(ids: list[int]) -> list[int | None]:
    """What follows each token of a text; nothing is known of the last."""
    return [*ids[1:], None]


def feed_whole(decoder: Decoder, ids: list[int]) -> Logits:
    """All tokens in one run."""
    return decoder.feed(ids, every_position=True)


def feed_one_by_one(decoder: Decoder, ids: list[int]) -> Logits:
    """Each token alone, over the cache."""
    return np.concatenate([decoder.feed([token]) for token in ids])


def feed_in_pieces(decoder: Decoder, ids: list[int]) -> Logits:
    """Pieces of 1, 2, 3 ... tokens, each over the cache of those before."""
    parts, start, size = [], 0, 1
    while start < len(ids):
        parts.append(decoder.feed(ids[start : start + size], every_position=True))
        start, size = start + size, size + 1
    return np.concatenate(parts)


def feed_ragged(decoder: Decoder, texts: list[list[int]], together: int) -> list[Logits]:
    """Texts of different lengths side by side: each prefilled alone, the last `together` tokens in common steps."""
    rows = [[decoder.feed(ids[:-together], row=row, every_position=True)] for row, ids in enumerate(texts)]
    for step in range(-together, 0):
        logits = decoder.step([ids[step] for ids in texts], [True] * len(texts))
        for row, parts in enumerate(rows):
            parts.append(logits[row : row + 1])
    return [np.concatenate(parts) for parts in rows]


def scenarios(source: Source, session: Session, ids: list[int]) -> Iterator[Scenario]:
    """Run and measure every scenario; ids: real tokens, as many as the longest scenario needs."""
    geometry = source.geometry

    def decoder(rows: int = 1) -> Decoder:
        return Decoder(session, geometry, rows=rows)

    text = ids[: min(WHOLE_LENGTH, geometry.context_length)]
    want = reference_logits(source, text)
    feeds: tuple[tuple[str, Callable[[Decoder, list[int]], Logits]], ...] = (
        ("whole prompt", feed_whole),
        ("token by token", feed_one_by_one),
        ("several tokens over a past", feed_in_pieces),
    )
    for name, feed in feeds:
        yield compare(name, feed(decoder(), text), want, followers(text))
    together = min(8, len(text) // 4)
    texts = [text[: len(text) // 3], text, text[1 : len(text) // 2 + 1]]
    ragged = feed_ragged(decoder(rows=len(texts)), texts, together)
    targets = [target for each in texts for target in followers(each)]
    wanted = np.concatenate([reference_logits(source, each) for each in texts])
    yield compare("ragged batch", np.concatenate(ragged), wanted, targets)
    for window in source.windows:
        if len(text) < window + 16 <= min(len(ids), LONGEST_WINDOW_TRIED):
            longer = ids[: min(len(ids), window + 32)]
            got = np.concatenate([feed_whole(d := decoder(), longer[:window]), feed_one_by_one(d, longer[window:])])
            yield compare(f"beyond the window of {window}", got, reference_logits(source, longer), followers(longer))


def greedy_reference(source: Source, prompt: list[int], tokens: int) -> tuple[int, ...]:
    """A greedy continuation by PyTorch alone."""
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(int(reference_logits(source, ids)[-1].argmax()))
    return tuple(ids[len(prompt) :])


def greedy_package(session: Session, source: Source, prompt: list[int], tokens: int) -> tuple[int, ...]:
    """A greedy continuation by the package."""
    decoder, new = Decoder(session, source.geometry), list[int]()
    logits = prefill(decoder, prompt)
    for _ in range(tokens):
        new.append(int(logits.argmax()))
        logits = decoder.feed([new[-1]])[-1]
    return tuple(new)


def needed_tokens(source: Source) -> int:
    """How many real tokens the scenarios want."""
    longest = max((w for w in source.windows if w <= LONGEST_WINDOW_TRIED - 32), default=0) + 32
    return min(max(WHOLE_LENGTH, longest), source.geometry.context_length)


def prove(source: Source, session: Session, ids: list[int], precision: Precision) -> tuple[list[Scenario], tuple[GoldenRun, ...]]:
    """Measure every scenario and the greedy runs; raises `ExportError` where the package disagrees with PyTorch."""
    tolerance = TOLERANCES[precision]
    measured = []
    for scenario in scenarios(source, session, ids):
        measured.append(scenario)
        if not (
            scenario.logits_error <= tolerance.logits_error
            and scenario.top1_agreement >= tolerance.top1_agreement
            and scenario.kl_divergence <= tolerance.kl_divergence
        ):
            raise ExportError(
                f"the export disagrees with PyTorch ({scenario.name}: logits error {scenario.logits_error:.1e}, "
                f"top-1 agreement {scenario.top1_agreement:.1%}, KL {scenario.kl_divergence:.1e}), so nothing was written; "
                + ("this model's attention is not the one that was traced" if precision == "fp32" else "try --precision fp32")
            )
    runs = []
    for length in (1, 8, 24):
        prompt = ids[: min(length, source.geometry.context_length // 2)]
        tokens = min(GOLDEN_TOKENS, source.geometry.context_length - len(prompt) - 1)
        new = greedy_package(session, source, prompt, tokens)
        if precision == "fp32" and new != (wanted := greedy_reference(source, prompt, tokens)):
            place = next(i for i, (a, b) in enumerate(zip(new, wanted, strict=True)) if a != b)
            raise ExportError(
                f"greedy generation differs from PyTorch at token {place + 1} after a prompt of {len(prompt)}, "
                "so nothing was written"
            )
        runs.append(GoldenRun(tuple(prompt), new))
    return measured, tuple(runs)


def certificate(measured: list[Scenario], precision: Precision) -> dict[str, Any]:
    """What goes into the manifest."""
    return {
        "reference": f"PyTorch {torch.__version__}, float32, no cache",
        "tolerance": dataclasses.asdict(TOLERANCES[precision]),
        "scenarios": [dataclasses.asdict(scenario) for scenario in measured],
    }
