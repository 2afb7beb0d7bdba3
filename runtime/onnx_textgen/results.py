"""Results of generation: plain records with numbers as data."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from .errors import OptionError
from .options.generation_config import GenerationConfig

SHOWN_CHARACTERS = 60
"""Characters of a text in the `repr` of its record."""

FinishReason = Literal["eos", "length", "stop", "context", "loop", "cancelled", "deadline"]


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """Counts and times of a generation.

    The clock starts with the call, for a stream too: not at its first chunk. So the times include a caller's pause between `stream`
    and the first chunk, and the time that a request waits for a row.
    """

    prompt_tokens: int
    reused_tokens: int
    """Prompt tokens that were in the cache already."""
    generated_tokens: int
    prefill_seconds: float
    """Time to feed this text's own prompt, and nothing else."""
    first_token_seconds: float
    """From the start of the clock to the first token."""
    total_seconds: float
    """From the start of the clock to the last token."""
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    """After the first token; of this text alone, also if other texts are generated with it."""
    seed: int
    """The seed that reproduces this text."""
    drafted_tokens: int = 0
    """Tokens of all drafts, see `prompt_lookup_num_tokens` and `num_assistant_tokens`."""
    accepted_tokens: int = 0
    """Draft tokens that were right and became part of the text."""


@dataclasses.dataclass(frozen=True, slots=True)
class Alternative:
    """A token that the model considered at one position."""

    token_id: int
    text: str
    """Its text as a person sees it: `<0xE2>` for a byte that is no character by itself."""
    logprob: float
    """Natural-log probability under the model itself, before temperature and truncation."""


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """One step of a stream."""

    text: str
    """Text that is now certain; may be empty while a character or a stop string is undecided."""
    token_ids: tuple[int, ...]
    """Ids of this step, without the end-of-text id."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each id under the model itself, before temperature and truncation; only with `logprobs`."""
    alternatives: tuple[tuple[Alternative, ...], ...] = ()
    """The most likely tokens at each id's position, as many as `logprobs` asks for."""
    finish_reason: FinishReason | None = None
    """Why the text ended; on the last chunk."""
    stats: Stats | None = None
    """On the last chunk."""
    follows_rule: bool | None = None
    """On the last chunk: whether the text follows its JSON Schema, regular expression or grammar to the end; else None."""


@dataclasses.dataclass(frozen=True, slots=True)
class Generation:
    """A finished text."""

    text: str
    """The new text, without the prompt."""
    token_ids: tuple[int, ...]
    """The new ids, without the end-of-text id."""
    finish_reason: FinishReason
    stats: Stats
    prompt_ids: tuple[int, ...]
    """Of an encoder-decoder: the ids that every text begins with."""
    config: GenerationConfig
    """The options that were used, with the seed that was drawn."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each id under the model itself; only with `logprobs`."""
    alternatives: tuple[tuple[Alternative, ...], ...] = ()
    """The most likely tokens at each id's position, as many as `logprobs` asks for."""
    score: float | None = None
    """Ranking score: a beam's log-probability / length ** length_penalty, or the mean log-probability of a drawn text's tokens,
    with the end-of-text id; None for a single text."""
    sequences: tuple[Generation, ...] = ()
    """All texts, best first, if the call asked for more than one; this record is the first of them."""
    follows_rule: bool | None = None
    """Whether the text follows its JSON Schema, regular expression or grammar to the end; None without a rule."""
    source_ids: tuple[int, ...] = ()
    """The ids that the encoder of an encoder-decoder has read; empty for a decoder, whose text follows its prompt."""

    def __repr__(self) -> str:
        others = f", {len(self.sequences)} sequences" if self.sequences else ""
        text = self.text if len(self.text) <= SHOWN_CHARACTERS else f"{self.text[:SHOWN_CHARACTERS]}..."
        return f"<Generation {text!r}: {len(self.token_ids):,} tokens, {self.finish_reason}, seed {self.stats.seed}{others}>"

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a transcription."""

    start: float
    end: float
    """Seconds from the beginning of the sound."""
    text: str
    token_ids: tuple[int, ...]
    """With those of times."""
    mean_logprob: float
    """Of the tokens of its window."""
    no_speech_prob: float
    """How likely nobody speaks in its window."""
    temperature: float
    """At which it was written; above 0 where colder texts were repetitive or unlikely."""
    compression_ratio: float
    """How much shorter the text of its window is when compressed; above 2.4 it repeats itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class Transcription:
    """What is said in a sound."""

    text: str
    language: str
    """Its code: that of the call, or the one that was heard."""
    segments: tuple[Segment, ...]
    duration: float
    """Seconds of the sound."""

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """One of several continuations, with its log-probability under the model."""

    text: str
    logprob: float
    """Natural-log probability of the whole continuation, given the prompt."""
    logprob_per_token: float
    logprob_per_byte: float
    """Per UTF-8 byte: comparable between continuations of different lengths."""


@dataclasses.dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document that `Model.rerank` scored for a query."""

    index: int
    """Its place in the list that was given."""
    text: str
    relevance_score: float
    """The higher, the more relevant; comparable between the documents of one query."""
    prompt_tokens: int
    """Number of tokens of the prompt that has the query and this document."""


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """The log-probabilities of a text under the model."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural-log probability of each token after the first, given all tokens before it."""
    text_bytes: int | None
    """UTF-8 bytes of the text that was scored; None for ids of a package without a tokenizer."""
    alternatives: tuple[tuple[Alternative, ...], ...] = ()
    """The most likely tokens at the position of each token after the first, as many as the call asked for."""
    prompt_tokens: int = 0
    """Number of ids that belong to the prompt, if the call had a continuation."""

    @property
    def continuation_logprobs(self) -> tuple[float, ...]:
        """Log-probabilities of the tokens after the prompt."""
        return self.logprobs[max(0, self.prompt_tokens - 1) :]

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability per token."""
        return math.exp(-sum(self.logprobs) / len(self.logprobs))

    @property
    def bits_per_byte(self) -> float:
        """Bits that the model needs per UTF-8 byte: comparable between tokenizers, unlike perplexity.

        Raises `OptionError` if the number of bytes is unknown or 0 (ids of special tokens only).
        """
        if not self.text_bytes:
            reason = "without a tokenizer the text is not known" if self.text_bytes is None else "the text has no bytes"
            raise OptionError(f"there are no bits per byte: {reason}; take perplexity")
        return -sum(self.logprobs) / math.log(2) / self.text_bytes
