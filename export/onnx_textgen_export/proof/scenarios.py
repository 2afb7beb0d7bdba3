"""Runs a package in every way that it will be used, over its real cache: the ways of feeding that a proof compares.

A whole prompt, token by token, a few tokens over a past, a ragged batch, and a long text, which outgrows the first buffers,
crosses sliding windows and ends with ids from all over the vocabulary. Greedy continuations follow; they become the golden runs
that `verify` replays without PyTorch.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from onnx_textgen.backends.onnxruntime_session import OnnxRuntimeSession, open_session
from onnx_textgen.backends.window import Window
from onnx_textgen.encoders.encoder import GraphEncoder
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.graph_runner import Logits
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.package.manifest import ENCODER_GRAPH, GoldenRun
from onnx_textgen.speech.speech_encoder import SpeechEncoder

from ..reports import Report
from ..sources.source import Source
from .adapters import ProvenAdapter
from .measures import ROWS_AT_A_TIME

WHOLE_LENGTH = 48
GOLDEN_TOKENS = 32
GOLDEN_PROMPTS = (1, 8, 24)
"""Tokens of the prompts that are continued greedily."""
LONG_LENGTH = 1100
"""More than two prefill chunks, and more than the first buffers hold."""
LONGEST_LENGTH = 8300
"""The text is made long enough to cross windows and rotary switches up to this length; longer ones are reported as untested."""
SCENARIOS = 5
"""Ways of feeding a package."""
LAST_STEPS, BATCH_STEPS = 16, 8
LARGE = 2_000_000_000
"""Parameters from which texts are half as long, because a run of such a model takes minutes; the certificate has their lengths."""
MOST_LOGITS = 1 << 25
"""Most logits of the long text that are compared; with a vocabulary of 128,000, those of its last 260 positions."""


def is_large(source: Source) -> bool:
    """Return whether texts of a source are half as long, because of its size."""
    return sum(each.numel() for each in source.module.parameters()) > LARGE


def text_length(tokens: int, source: Source) -> int:
    """Tokens of a text: half as many for a large model, and never beyond the context."""
    return min(tokens // 2 if is_large(source) else tokens, source.geometry.context_length)


def fed(decoder: Decoder, ids: list[int]) -> Iterator[Logits]:
    """Logits of every token of a text, in slices; an encoder-decoder has read the same text as its source."""
    can = decoder.capabilities
    step = 1 if can.takes_single_tokens else len(ids) if not can.appends else 4 * ROWS_AT_A_TIME
    for start in range(0, len(ids), step):
        yield decoder.feed(ids[start : start + step], every_position=True)


def feed_whole(decoder: Decoder, ids: list[int]) -> Logits:
    """All tokens in one run."""
    return decoder.feed(ids, every_position=True)


def feed_one_by_one(decoder: Decoder, ids: list[int]) -> Logits:
    """One token per run, over the cache."""
    return np.concatenate([decoder.feed([token]) for token in ids])


def feed_in_pieces(decoder: Decoder, ids: list[int], first: int = 1) -> Logits:
    """Chunks of `first` tokens, twice as many and so on, each over the cache of those before."""
    parts, start, size = [], 0, first
    while start < len(ids):
        end = decoder.picture_boundary(ids, start + size)
        parts.append(decoder.feed(ids[start:end], every_position=True))
        start, size = end, 2 * size
    return np.concatenate(parts)


def feed_ragged(decoder: Decoder, texts: list[list[int]], together: int) -> list[Logits]:
    """Texts of different lengths in one batch: each prefilled alone, the last `together` tokens decoded in common steps."""
    rows = [[decoder.feed(ids[:-together], row=row, every_position=True)] for row, ids in enumerate(texts)]
    for step in range(-together, 0):
        logits = decoder.step([ids[step] for ids in texts], [True] * len(texts))
        for row, parts in enumerate(rows):
            parts.append(logits[row : row + 1])
    return [np.concatenate(parts) for parts in rows]


@dataclasses.dataclass(frozen=True, slots=True)
class Fed:
    """A text that the package was fed."""

    ids: list[int]
    logits: Logits
    """[positions, vocabulary], of the text's last positions."""
    source_ids: list[int] = dataclasses.field(default_factory=list)
    """The source before it, of an encoder-decoder."""


@dataclasses.dataclass(frozen=True, slots=True)
class ScenarioRun:
    """Texts fed to the package in one way, and the logits it gave."""

    name: str
    parts: list[Fed]


def counted(runs: Iterable[ScenarioRun], total: int, doing: str, report: Report) -> Iterator[ScenarioRun]:
    """The runs; `report` is told each when it is done: `PyTorch's text 2 of 5`."""
    waiting = iter(runs)
    for number in range(1, total + 1):
        yield next(waiting)
        report(f"{doing} {number} of {total}")


class NewDecoder(Protocol):
    """Makes empty decoders of the graph that is compared."""

    def __call__(self, *source_ids: Sequence[int]) -> Decoder:
        """Return a decoder with one row per source; one row for decoder-only models, which have no sources."""
        ...


def decoders_of(
    source: Source,
    session: OnnxRuntimeSession,
    adapter: ProvenAdapter | None = None,
    *,
    encoder: OnnxRuntimeSession | None = None,
    extra_outputs: Sequence[str] = (),
) -> NewDecoder:
    """Return a maker of decoders for a session, or its graph with adapters; `encoder`: the graph that reads the sources.

    extra_outputs: see `Decoder`.
    """
    opened, name = (session, None) if adapter is None else (adapter.opened(session), adapter.name)
    reader = None if encoder is None else reader_of(source, encoder, list(session.encoder_inputs))

    def decoder(*source_ids: Sequence[int]) -> Decoder:
        rows = max(len(source_ids), 1)
        made = Decoder(opened, source.geometry, rows=rows, adapter=name, encoder=reader, extra_outputs=extra_outputs)
        for row, ids in enumerate(source_ids if reader is not None else ()):
            made.read_source(ids, row=row)
        return made

    return decoder


def reader_of(source: Source, encoder: OnnxRuntimeSession, names: Sequence[str]) -> GraphEncoder:
    """What reads sources by a graph; `names`: of the decoder's inputs that it makes."""
    reads_sound = source.encoder is not None and source.encoder.features is not None
    return SpeechEncoder(encoder, names) if reads_sound else GraphEncoder(encoder, names)


def open_encoder(source: Source, graph: Path) -> OnnxRuntimeSession | None:
    """The encoder next to the decoder's graph; None for a decoder."""
    return None if source.encoder is None else open_session(graph.with_name(ENCODER_GRAPH), device="cpu")


def source_ids_for(source: Source, ids: list[int], most: int = WHOLE_LENGTH) -> list[int]:
    """The beginning of `ids` as the source of a text, which ends elsewhere than the text; empty for a decoder."""
    return [] if source.encoder is None else ids[: max(min(most, source.encoder.source_length) - 3, 2)]


def run_scenarios(source: Source, decoder: NewDecoder, ids: list[int]) -> Iterator[ScenarioRun]:
    """Feed the package in every way; ids: real tokens, enough for the longest scenario."""
    text = ids[: text_length(WHOLE_LENGTH, source)]
    feeds: tuple[tuple[str, Callable[[Decoder, list[int]], Logits]], ...] = (
        ("whole prompt", feed_whole),
        ("token by token", feed_one_by_one),
        ("several tokens over a past", feed_in_pieces),
    )
    read = source_ids_for(source, ids)
    for name, feed in feeds:
        yield ScenarioRun(name, [Fed(text, feed(decoder(read), text), read)])
    yield feed_batch(source, decoder, ids, [text[: len(text) // 3], text, text[1 : len(text) // 2 + 1]])
    start = len(ids) - LAST_STEPS
    crossed = [border.in_words() for border in source.borders if border.length < start]
    read = source_ids_for(source, ids, most=len(ids))
    name = "long text" + (f" beyond {' and '.join(crossed)}" if crossed else "")
    yield ScenarioRun(name, [Fed(ids, feed_long(decoder(read), ids), read)])


def feed_batch(
    source: Source, decoder: NewDecoder, ids: list[int], texts: list[list[int]], most_steps: int = BATCH_STEPS
) -> ScenarioRun:
    """Texts of different lengths in one batch, of an encoder-decoder after sources of different lengths."""
    read = source_ids_for(source, ids)
    sources = [read[: -(-len(read) // count)] for count in (3, 1, 2)]
    ragged = feed_ragged(decoder(*sources), texts, min(most_steps, len(texts[1]) // 4))
    return ScenarioRun("ragged batch", [Fed(*each) for each in zip(texts, ragged, sources, strict=True)])


def feed_long(decoder: Decoder, ids: list[int]) -> Logits:
    """Prefill all but the end, then feed the end token by token; returns the logits of the last positions, as many as are compared.

    The token that crosses a rotary switch is fed alone, so that a switch one token early or late is detected.
    """
    start, kept = len(ids) - LAST_STEPS, max(MOST_LOGITS // decoder.geometry.vocab_size, LAST_STEPS + 1)
    first = max(len(ids) - kept, 0)
    switch = decoder.capabilities.rope_switch_length or 0
    cuts = sorted({*range(first, start, ROWS_AT_A_TIME), start, *(cut for cut in (switch, switch + 1) if first < cut < start)})
    parts = [] if first == 0 else [prefill(decoder, ids[:first])[None]]
    parts += [decoder.feed(ids[at:end], every_position=True) for at, end in itertools.pairwise(cuts)]
    return np.concatenate([*parts, feed_one_by_one(decoder, ids[start:])])


def long_length(source: Source) -> int:
    """Length of the long text: beyond windows, what the cache holds of them, and the rotary switch, where `LONGEST_LENGTH` allows.

    Never beyond the context.
    """
    crossed = [*(border.length for border in source.borders), *(Window(size).capacity for size in source.windows)]
    needed = [length + LAST_STEPS + 16 for length in crossed]
    crossing = [length for length in needed if length <= LONGEST_LENGTH]
    return min(max([text_length(LONG_LENGTH, source), *crossing]), source.geometry.context_length)


def golden_runs(new_decoder: NewDecoder, source: Source, ids: list[int]) -> tuple[GoldenRun, ...]:
    """Greedy continuations of prompts of three lengths."""
    prompts = [ids[: min(length, source.geometry.context_length // 2)] for length in GOLDEN_PROMPTS]
    if source.encoder is None:
        return tuple(greedy(new_decoder, source, prompt) for prompt in prompts)
    return tuple(greedy(new_decoder, source, list(source.encoder.start_ids), read) for read in prompts)


def greedy(
    new_decoder: NewDecoder, source: Source, prompt: list[int], read: Sequence[int] = (), new: Sequence[int] = ()
) -> GoldenRun:
    """A greedy continuation by the package; `read`: the source of an encoder-decoder, `new`: its beginning, where that is known."""
    decoder, made = new_decoder(read), list(new)
    most = min(text_length(GOLDEN_TOKENS, source), source.geometry.context_length - len(prompt) - 1)
    logits = prefill(decoder, [*prompt, *made])
    while len(made) < most:
        made.append(int(logits.argmax()))
        logits = decoder.feed([made[-1]])[-1]
    return GoldenRun(tuple(prompt), tuple(made), source_ids=tuple(read))


def corrected(
    new_decoder: NewDecoder, source: Source, draft: GoldenRun, drafting: Callable[[], NewDecoder], *, most: int
) -> GoldenRun:
    """The greedy continuation of a run's prompt, of which another arithmetic wrote a draft: one run for each wrong token.

    A package's products of single tokens in float32 take many times as long as its own, with which `drafting` continues. Where the
    two often differ, as with random weights, the continuation ends after the token that needed one more than `most` corrections.
    """
    prompt = list(draft.prompt_ids)
    for correction in itertools.count():
        new = draft.new_ids
        likeliest = new_decoder(draft.source_ids).feed([*prompt, *new[:-1]], every_position=True)[len(prompt) - 1 :].argmax(axis=1)
        wrong = np.flatnonzero(likeliest != new)
        if not len(wrong):
            break
        right = [*new[: wrong[0]], int(likeliest[wrong[0]])]
        if correction == most:
            return dataclasses.replace(draft, new_ids=tuple(right))
        draft = greedy(drafting(), source, prompt, draft.source_ids, right)
    return draft


def run_package(
    source: Source, graph: Path, ids: list[int], adapter: ProvenAdapter | None = None, *, report: Report = lambda step: None
) -> tuple[list[ScenarioRun], tuple[GoldenRun, ...]]:
    """Open the package's graph, feed it in every way, and continue prompts of three lengths greedily."""
    decoder = decoders_of(source, open_session(graph, device="cpu"), adapter, encoder=open_encoder(source, graph))
    return list(counted(run_scenarios(source, decoder, ids), SCENARIOS, "run", report)), golden_runs(decoder, source, ids)
