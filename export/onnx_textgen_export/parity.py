"""Proof that an export computes what PyTorch computes: the parity certificate.

The package is run by the runtime itself, over its real cache, and its logits are compared with the source's own, uncached
PyTorch forward: a whole prompt, token by token, several tokens over a past, a ragged batch, and a long text, which outgrows the
first buffers, crosses sliding windows and ends with ids from all over the vocabulary. Then greedy continuations are judged
token by token; they become the golden runs that `verify` replays without torch. The certificate says how far the proof reaches.
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
LONG_LENGTH = 1100
"""More than two chunks of a prompt, and several times the first buffers."""
LONGEST_LENGTH = 8300
"""A window up to this, less the steps, is crossed; a longer one is named as untested."""
LAST_STEPS = 16
SHORTEST_CONTEXT = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """What an export at some precision must reach."""

    logits_error: float
    """Largest difference of a logit, relative to the largest magnitude among the reference's logits."""
    top1_agreement: float
    """Share of positions at which both put the same token first, ties within the logits error left out."""
    kl_divergence: float
    """Mean divergence of the package's distribution from PyTorch's, in nats per token."""

    def admits(self, scenario: Scenario) -> bool:
        """Whether a scenario is within; two differing positions are no sign of anything in a short one, unless all must agree."""
        differing = (1 - scenario.top1_agreement) * scenario.tokens
        allowed = max(2.0, (1 - self.top1_agreement) * scenario.tokens) if self.top1_agreement < 1 else 0.0
        return (
            scenario.logits_error <= self.logits_error
            and differing <= allowed + 1e-9
            and scenario.kl_divergence <= self.kl_divergence
        )


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
    yield long_text(source, decoder(), ids)


def long_text(source: Source, decoder: Decoder, ids: list[int]) -> Scenario:
    """Everything but the end as a prompt, the end token by token; the logits of that end are compared."""
    start = len(ids) - LAST_STEPS
    got = [prefill(decoder, ids[:start])[None], *(decoder.feed([token]) for token in ids[start:])]
    crossed = [window for window in source.windows if window < start]
    name = "long text" + (f" beyond the window of {max(crossed)}" if crossed else "")
    want = reference_logits(source, ids)[start - 1 :]
    return compare(name, np.concatenate(got), want, followers(ids)[start - 1 :])


def greedy_package(session: Session, source: Source, prompt: list[int], tokens: int) -> tuple[int, ...]:
    """A greedy continuation by the package."""
    decoder, new = Decoder(session, source.geometry), list[int]()
    logits = prefill(decoder, prompt)
    for _ in range(tokens):
        new.append(int(logits.argmax()))
        logits = decoder.feed([new[-1]])[-1]
    return tuple(new)


def long_length(source: Source) -> int:
    """Tokens of the long text: past the windows where they are not too long, inside the context."""
    reachable = [window + LAST_STEPS + 16 for window in source.windows if window + LAST_STEPS + 16 <= LONGEST_LENGTH]
    return min(max(LONG_LENGTH, *reachable, 0), source.geometry.context_length)


def greedy_run(source: Source, session: Session, prompt: list[int], tolerance: Tolerance) -> GoldenRun:
    """A greedy continuation by the package, each token judged by PyTorch on the same text."""
    tokens = min(GOLDEN_TOKENS, source.geometry.context_length - len(prompt) - 1)
    new = greedy_package(session, source, prompt, tokens)
    want = reference_logits(source, [*prompt, *new[:-1]])[len(prompt) - 1 :]
    behind = want.max(axis=1) - want[np.arange(tokens), list(new)]
    wrong = np.flatnonzero(behind > tolerance.logits_error * np.abs(want).max())
    if len(wrong):
        raise ExportError(f"greedy token {wrong[0] + 1} after a prompt of {len(prompt)} is not PyTorch's, so nothing was written")
    return GoldenRun(tuple(prompt), new)


def prove(source: Source, session: Session, ids: list[int], precision: Precision) -> tuple[list[Scenario], tuple[GoldenRun, ...]]:
    """Measure every scenario and the greedy runs; raises `ExportError` where the package disagrees with PyTorch.

    ids: `long_length(source)` real tokens.
    """
    tolerance = TOLERANCES[precision]
    measured = []
    for scenario in scenarios(source, session, ids):
        measured.append(scenario)
        if not tolerance.admits(scenario):
            raise ExportError(
                f"the export disagrees with PyTorch ({scenario.name}: logits error {scenario.logits_error:.1e}, "
                f"top-1 agreement {scenario.top1_agreement:.1%}, KL {scenario.kl_divergence:.1e}), so nothing was written; "
                + ("this model's attention is not the one that was traced" if precision == "fp32" else "try --precision fp32")
            )
    prompts = [ids[: min(length, source.geometry.context_length // 2)] for length in (1, 8, 24)]
    return measured, tuple(greedy_run(source, session, prompt, tolerance) for prompt in prompts)


def certificate(source: Source, measured: list[Scenario], precision: Precision) -> dict[str, Any]:
    """What goes into the manifest."""
    longest = long_length(source)
    return {
        "reference": f"PyTorch {torch.__version__}, float32, no cache",
        "longest_text": longest,
        "untested_windows": [
            window for window in source.windows if longest - LAST_STEPS <= window < source.geometry.context_length
        ],
        "largest_logits_error": max(scenario.logits_error for scenario in measured),
        "tolerance": dataclasses.asdict(TOLERANCES[precision]),
        "scenarios": [dataclasses.asdict(scenario) for scenario in measured],
    }
