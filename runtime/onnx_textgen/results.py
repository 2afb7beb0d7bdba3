"""What generation gives back: plain records, numbers as data."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from .errors import OptionError
from .options.generation_config import GenerationConfig

SHOWN_CHARACTERS = 60
"""Of a text, where Python shows its record."""

FinishReason = Literal["eos", "length", "stop", "context", "loop", "cancelled", "deadline"]


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """How a generation went.

    The clock starts when the text is asked for: for a stream when `stream` is called, not at its first chunk, so a caller who
    waits in between is in it, and so is a request that waits for a row.
    """

    prompt_tokens: int
    reused_tokens: int
    """Prompt tokens that were in the cache already."""
    generated_tokens: int
    prefill_seconds: float
    """Feeding this text's own prompt, nothing else."""
    first_token_seconds: float
    """From the start of the clock to the first token."""
    total_seconds: float
    """From the start of the clock to the last token."""
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    """After the first token; of this text alone, also where several are generated together."""
    seed: int
    """The seed that gives this text again."""
    drafted_tokens: int = 0
    """Tokens that were guessed, see `prompt_lookup_num_tokens` and `num_assistant_tokens`."""
    accepted_tokens: int = 0
    """Those of them that the model would have chosen too."""


@dataclasses.dataclass(frozen=True, slots=True)
class Alternative:
    """A token that the model weighed at some place."""

    token_id: int
    text: str
    """Its text as a person sees it: `<0xE2>` for a byte that is no character by itself."""
    logprob: float
    """Natural-log probability under the model itself, before temperature and cuts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """One step of a stream."""

    text: str
    """Text that is now certain; may be empty while a character or a stop string is undecided."""
    token_ids: tuple[int, ...]
    """Ids this step brought, the end-of-text id left out."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each id under the model itself, before temperature and cuts; only with `logprobs`."""
    alternatives: tuple[tuple[Alternative, ...], ...] = ()
    """As many of the most likely tokens at each id's place as `logprobs` asks for."""
    finish_reason: FinishReason | None = None
    """Why the text ended; on the last chunk."""
    stats: Stats | None = None
    """On the last chunk."""
    follows_rule: bool | None = None
    """On the last chunk: whether the text follows its JSON Schema, regular expression or grammar to the end; None without one."""


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
    config: GenerationConfig
    """The settings that held, with the seed that was drawn."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each id under the model itself; only with `logprobs`."""
    alternatives: tuple[tuple[Alternative, ...], ...] = ()
    """As many of the most likely tokens at each id's place as `logprobs` asks for."""
    score: float | None = None
    """What several texts were compared by: a beam's log-probability over its length to the power of the length penalty, or the mean
    log-probability of a drawn text's tokens, the end-of-text id included; None for a text alone."""
    sequences: tuple[Generation, ...] = ()
    """All texts that were asked for, the best first, where it is more than one; this is the first of them."""
    follows_rule: bool | None = None
    """Whether the text follows its JSON Schema, regular expression or grammar to the end; None where there is none."""

    def __repr__(self) -> str:
        others = f", {len(self.sequences)} sequences" if self.sequences else ""
        text = self.text if len(self.text) <= SHOWN_CHARACTERS else f"{self.text[:SHOWN_CHARACTERS]}..."
        return f"<Generation {text!r}: {len(self.token_ids):,} tokens, {self.finish_reason}, seed {self.stats.seed}{others}>"


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """One of several continuations, and how likely the model finds it."""

    text: str
    logprob: float
    """Natural-log probability of the whole continuation, given the prompt."""
    logprob_per_token: float
    logprob_per_byte: float
    """Per UTF-8 byte: fair between continuations of different lengths."""


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """How likely the model finds a text."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural-log probability of each token after the first, given all before it."""
    text_bytes: int | None
    """UTF-8 bytes of the text that was scored; None for ids of a package without a tokenizer."""
    alternatives: tuple[tuple[Alternative, ...], ...] = ()
    """As many of the most likely tokens at the place of each token after the first as were asked for."""
    prompt_tokens: int = 0
    """How many of the ids are the prompt's, where a continuation was given."""

    @property
    def continuation_logprobs(self) -> tuple[float, ...]:
        """Log-probabilities of the tokens after the prompt."""
        return self.logprobs[max(0, self.prompt_tokens - 1) :]

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability."""
        return math.exp(-sum(self.logprobs) / len(self.logprobs))

    @property
    def bits_per_byte(self) -> float:
        """Bits the model needs per UTF-8 byte: comparable between tokenizers, unlike perplexity.

        Raises `OptionError` where the bytes are not known or none (ids of special tokens only).
        """
        if not self.text_bytes:
            reason = "without a tokenizer the text is not known" if self.text_bytes is None else "the text has no bytes"
            raise OptionError(f"there are no bits per byte: {reason}; take perplexity")
        return -sum(self.logprobs) / math.log(2) / self.text_bytes
