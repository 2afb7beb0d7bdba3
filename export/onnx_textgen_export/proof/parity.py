"""Proof that an export computes what PyTorch computes: the parity certificate.

The package is run by the runtime itself, over its real cache: a whole prompt, token by token, several tokens over a past, a ragged
batch, and a long text, which outgrows the first buffers, crosses sliding windows and ends with ids from all over the vocabulary.
Greedy continuations follow; they become the golden runs that `verify` replays without torch. Then the package is closed, and the
source's own, uncached PyTorch forward says what the logits should have been: the two are never in memory together. The
certificate says how far the proof reaches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from onnx_textgen.backends.onnxruntime_session import Session, open_session
from onnx_textgen.errors import ModelError, PackageError, first_line
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.graph_runner import Logits
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.package.manifest import GoldenRun, Precision

from ..errors import ExportError
from ..sources.source import Source, only_these_positions
from ..weights.streamed import Weights

WHOLE_LENGTH = 48
GOLDEN_TOKENS = 32
LONG_LENGTH = 1100
"""More than two chunks of a prompt, and several times the first buffers."""
LONGEST_LENGTH = 8300
"""A window or rotary switch up to this, less the steps, is crossed; a longer one is named as untested."""
LAST_STEPS = 16
MOST_LOGITS = 1 << 25
"""Logits of the long text that are compared; with a vocabulary of 128,000 these are its last 260 positions."""
ROWS_AT_A_TIME = 32
"""Rows of logits that one run gives, or one comparison takes, so that memory stays small."""
SHORTEST_CONTEXT = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Quality:
    """What rounding does on a text, as a package runs."""

    tokens: int
    kl_mean: float
    """Divergence of the package's predictions from PyTorch's, in nats per token."""
    kl_p99: float
    """Its 99th percentile."""
    top1_agreement: float
    """Share of positions at which both think the same token likeliest."""
    perplexity_change: float
    """Relative; 0.01 is one per cent worse."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """What an export at some precision must reach."""

    logits_error: float
    """Largest difference of a logit, relative to the largest magnitude among the reference's logits."""
    top1_agreement: float
    """Share of positions at which both put the same token first, ties in float32 left out."""
    kl_divergence: float
    """Mean divergence of the package's distribution from PyTorch's, in nats per token."""

    def admits(self, scenario: Scenario) -> bool:
        """Whether a scenario is within.

        Where not all must agree, two differing positions are no sign of anything in a short scenario; and where logits differ by
        a tenth of what is admitted, or distributions by a hundredth, another token comes first only if both are as good as equal.
        """
        differing = (1 - scenario.top1_agreement) * scenario.tokens
        allowed = 0.0
        if self.top1_agreement < 1:
            near = scenario.logits_error <= self.logits_error / 10 or scenario.kl_divergence <= self.kl_divergence / 100
            allowed = scenario.tokens if near else max(2.0, (1 - self.top1_agreement) * scenario.tokens)
        return (
            scenario.logits_error <= self.logits_error
            and differing <= allowed + 1e-9
            and scenario.kl_divergence <= self.kl_divergence
        )


TOLERANCES: dict[Precision, Tolerance] = {
    "fp32": Tolerance(logits_error=1e-4, top1_agreement=1.0, kl_divergence=1e-6),
    "fp16": Tolerance(logits_error=0.02, top1_agreement=0.98, kl_divergence=1e-3),
    "int8": Tolerance(logits_error=0.1, top1_agreement=0.95, kl_divergence=0.005),
    "int4": Tolerance(logits_error=0.5, top1_agreement=0.75, kl_divergence=0.2),
}


ANY_ROUNDING = Tolerance(logits_error=float("inf"), top1_agreement=0.0, kl_divergence=float("inf"))
"""Where a comparison with the same rounded weights has shown that the graph is right: then this one only measures."""

REMEDIES: dict[Precision, str] = {
    "fp32": "its forward does something with lengths, positions, masks or its own state that the graph does not follow",
    "fp16": "try --precision fp32",
    "int8": "try --precision fp32",
    "int4": "try --head-bits 8 --sensitive-bits 8, or --precision int8",
}
"""What to do about an export that differs too much."""


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

    def in_words(self) -> str:
        """For an error's line."""
        return (
            f"{self.name}: logits error {self.logits_error:.1e}, top-1 agreement {self.top1_agreement:.1%}, "
            f"KL {self.kl_divergence:.1e}"
        )


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """log softmax over the last axis in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def compare(name: str, got: Logits, want: Logits, targets: list[int | None]) -> Scenario:
    """Measure logits [tokens, vocabulary] against PyTorch's; `targets` are the tokens that really followed."""
    largest = max(float(want.max()), -float(want.min()))
    error, divergence, agreeing, changes = 0.0, 0.0, 0, list[float]()
    for start in range(0, len(got), ROWS_AT_A_TIME):
        rows = slice(start, start + ROWS_AT_A_TIME)
        part_got, part_want = got[rows], want[rows]
        difference = float(np.abs(part_got - part_want).max()) / largest
        error = max(error, difference if np.isfinite(difference) else float("inf"))
        behind = part_want.max(axis=1) - np.take_along_axis(part_want, part_got.argmax(1)[:, None], axis=1)[:, 0]
        agreeing += int((behind <= 2e-6 * largest).sum())  # a tie in float32 is no disagreement
        log_got, log_want = log_softmax(part_got), log_softmax(part_want)
        divergence += float((np.exp(log_want) * (log_want - log_got)).sum())
        changes += [log_want[row, target] - log_got[row, target] for row, target in enumerate(targets[rows]) if target is not None]
    change = float(np.expm1(np.mean(changes))) if changes else 0.0
    return Scenario(name, len(got), error, agreeing / len(got), max(divergence / len(got), 0.0), change)


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


@dataclasses.dataclass(frozen=True, slots=True)
class Fed:
    """Texts that went through the package in one of the ways of feeding."""

    name: str
    parts: list[tuple[list[int], Logits]]
    """Token ids, and the package's logits [positions, vocabulary] of the last of them."""


def run_scenarios(source: Source, session: Session, ids: list[int]) -> Iterator[Fed]:
    """Feed the package in every way; ids: real tokens, as many as the longest scenario needs."""
    geometry = source.geometry

    def decoder(rows: int = 1) -> Decoder:
        return Decoder(session, geometry, rows=rows)

    text = ids[: min(WHOLE_LENGTH, geometry.context_length)]
    feeds: tuple[tuple[str, Callable[[Decoder, list[int]], Logits]], ...] = (
        ("whole prompt", feed_whole),
        ("token by token", feed_one_by_one),
        ("several tokens over a past", feed_in_pieces),
    )
    for name, feed in feeds:
        yield Fed(name, [(text, feed(decoder(), text))])
    together = min(8, len(text) // 4)
    texts = [text[: len(text) // 3], text, text[1 : len(text) // 2 + 1]]
    ragged = feed_ragged(decoder(rows=len(texts)), texts, together)
    yield Fed("ragged batch", list(zip(texts, ragged, strict=True)))
    start = len(ids) - LAST_STEPS
    crossed = [border.in_words() for border in source.borders if border.length < start]
    yield Fed("long text" + (f" beyond {' and '.join(crossed)}" if crossed else ""), [(ids, feed_long(decoder(), ids))])


def feed_long(decoder: Decoder, ids: list[int]) -> Logits:
    """Everything but the end as a prompt in chunks, the end token by token; logits of as many of the last as are compared.

    The token that crosses a rotary switch comes alone, so that crossing one token early or late is seen.
    """
    start, kept = len(ids) - LAST_STEPS, max(MOST_LOGITS // decoder.geometry.vocab_size, LAST_STEPS + 1)
    first = max(len(ids) - kept, 0)
    switch = decoder.capabilities.rope_switch_length or 0
    cuts = sorted({*range(first, start, ROWS_AT_A_TIME), start, *(cut for cut in (switch, switch + 1) if first < cut < start)})
    parts = [] if first == 0 else [prefill(decoder, ids[:first])[None]]
    parts += [decoder.feed(ids[at:end], every_position=True) for at, end in itertools.pairwise(cuts)]
    return np.concatenate([*parts, feed_one_by_one(decoder, ids[start:])])


def long_length(source: Source) -> int:
    """Tokens of the long text: past windows and rotary switch where they are not too far, inside the context."""
    needed = [border.length + LAST_STEPS + 16 for border in source.borders]
    return min(max([LONG_LENGTH, *(length for length in needed if length <= LONGEST_LENGTH)]), source.geometry.context_length)


def greedy(session: Session, source: Source, prompt: list[int]) -> GoldenRun:
    """A greedy continuation by the package."""
    decoder, new = Decoder(session, source.geometry), list[int]()
    logits = prefill(decoder, prompt)
    for _ in range(min(GOLDEN_TOKENS, source.geometry.context_length - len(prompt) - 1)):
        new.append(int(logits.argmax()))
        logits = decoder.feed([new[-1]])[-1]
    return GoldenRun(tuple(prompt), tuple(new))


@contextlib.contextmanager
def why_it_does_not_run() -> Iterator[None]:
    """Raise what the runtime says of a package as an `ExportError`."""
    try:
        yield
    except (ModelError, PackageError) as error:
        raise ExportError(f"the exported graph does not run: {first_line(error)}") from error


def run_package(source: Source, graph: Path, ids: list[int]) -> tuple[list[Fed], tuple[GoldenRun, ...]]:
    """Open the package's graph, feed it in every way, and let it continue some prompts."""
    session = open_session(graph, device="cpu")
    fed = list(run_scenarios(source, session, ids))
    prompts = [ids[: min(length, source.geometry.context_length // 2)] for length in (1, 8, 24)]
    return fed, tuple(greedy(session, source, prompt) for prompt in prompts)


class Reference:
    """PyTorch's word on what the logits of a text are."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.known: dict[tuple[tuple[int, ...], int], Logits] = {}
        """Short texts come up in several scenarios."""

    def logits(self, ids: Sequence[int], last: int) -> Logits:
        """Logits [last, vocabulary] of the end of a text, without a cache."""
        key = (tuple(ids), last)
        if key in self.known:
            return self.known[key]
        for (text, count), whole in self.known.items():  # a text that begins with this one, where its end changes nothing before
            if count == len(text) and text[: len(ids)] == key[0] and self.source.rotary_switch is None:
                return whole[len(ids) - last : len(ids)]
        positions = torch.arange(len(ids) - last, len(ids))
        head = self.source.head if last < len(ids) else None  # a whole text's logits come from the untouched module
        with torch.no_grad(), only_these_positions(head, positions):
            logits = self.source.reference(torch.tensor([list(ids)]))[0]
        made = np.asarray((logits if head is not None else logits[positions]).float().numpy())
        if len(ids) <= WHOLE_LENGTH:
            self.known[key] = made
        return made

    def before_the_switch(self, ids: Sequence[int], last: int) -> int:
        """How many of the `last` logits of a text lie before a rotary switch that the text crosses.

        There a text fed piece by piece has other logits than the whole.
        """
        switch = self.source.rotary_switch
        return min(max(switch - len(ids) + last, 0), last) if switch is not None and len(ids) > switch else 0


def judge_scenario(reference: Reference, fed: Fed) -> Scenario:
    """Measure one way of feeding against PyTorch."""
    parts = [(ids, logits[reference.before_the_switch(ids, len(logits)) :]) for ids, logits in fed.parts]
    got = np.concatenate([logits for _, logits in parts])
    want = np.concatenate([reference.logits(ids, len(logits)) for ids, logits in parts])
    return compare(fed.name, got, want, [target for ids, logits in parts for target in followers(ids)[-len(logits) :]])


def judge_greedy(reference: Reference, run: GoldenRun, tolerance: Tolerance, remedy: str) -> None:
    """Refuse a greedy continuation with a token that PyTorch puts behind on the same text."""
    text, count = [*run.prompt_ids, *run.new_ids[:-1]], len(run.new_ids)
    early = reference.before_the_switch(text, count)
    want = reference.logits(text, count - early)
    if early:
        want = np.concatenate([reference.logits(text[: reference.source.rotary_switch], early), want])
    behind = want.max(axis=1) - want[np.arange(len(run.new_ids)), list(run.new_ids)]
    wrong = np.flatnonzero(behind > tolerance.logits_error * np.abs(want).max())
    if len(wrong):
        prompt = len(run.prompt_ids)
        raise ExportError(
            f"greedy token {wrong[0] + 1} after a prompt of {prompt} is not PyTorch's, so nothing was written; {remedy}"
        )


def prove(
    source: Source, weights: Weights, graph: Path, ids: list[int], *, tolerance: Tolerance, remedy: str
) -> tuple[list[Scenario], tuple[GoldenRun, ...]]:
    """Measure every scenario and the greedy runs; raises `ExportError` where the package disagrees with PyTorch.

    ids: `long_length(source)` real tokens; `remedy` says what to do then.
    """
    with why_it_does_not_run():
        fed, golden = run_package(source, graph, ids)
    reference, measured = Reference(source), list[Scenario]()
    with weights.present():
        for each in fed:
            scenario = judge_scenario(reference, each)
            measured.append(scenario)
            if not tolerance.admits(scenario):
                raise ExportError(f"the export disagrees with PyTorch ({scenario.in_words()}), so nothing was written; {remedy}")
        for run in golden:
            judge_greedy(reference, run, tolerance, remedy)
    return measured, golden


def certificate(
    source: Source,
    measured: list[Scenario],
    exact: list[Scenario],
    precision: Precision,
    *,
    size_bytes: int,
    quality: Mapping[str, Quality] | None = None,
    arithmetic: Precision = "fp32",
) -> dict[str, Any]:
    """What goes into the manifest; `summary` is the long text's, the only scenario of real length.

    Of a quantised package `exact` is what `exactness` measured, of a graph that computes in `arithmetic`, and `quality` what
    rounding does on real texts, which the summary is of then.
    """
    longest, text = long_length(source), measured[-1]
    summary = {name: getattr(text, name) for name in ("tokens", "top1_agreement", "kl_divergence", "perplexity_change")}
    if quality is not None:
        everything = quality["all"]
        summary |= {name: getattr(everything, name) for name in ("tokens", "top1_agreement", "perplexity_change")}
        summary["kl_divergence"] = everything.kl_mean
    return {
        "reference": f"PyTorch {torch.__version__}, float32, no cache",
        "summary": {"size_bytes": size_bytes} | summary,
        "longest_text": longest,
        "untested": [
            border.in_words() for border in source.borders if longest - LAST_STEPS <= border.length < source.geometry.context_length
        ],
        "largest_logits_error": max(scenario.logits_error for scenario in measured),
        "tolerance": dataclasses.asdict(TOLERANCES[arithmetic if exact else precision]),
        "scenarios": [dataclasses.asdict(scenario) for scenario in measured],
        **({"same_weights": [dataclasses.asdict(scenario) for scenario in exact]} if exact else {}),
        **({"rounding": {kind: dataclasses.asdict(each) for kind, each in quality.items()}} if quality is not None else {}),
    }
