"""The whole chain from a row of logits to a token, for one text.

The order: constraint, logit bias, banned ids, repetition penalty, presence and frequency penalties, no-repeat n-gram, DRY, minimum
number of tokens, the caller's logits processor; then temperature, top-k, top-p and min-p; then the most likely token or a draw. The
first part (`process`) corresponds to transformers' logits processors, the second (`draw`) to its warpers. Each stage is a plain
function of arrays in `penalties`, `truncation` or `draw`; this module keeps their state. DRY is one of the penalties, as in
llama.cpp: after truncation it could only penalise the tokens that stayed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np

from ..errors import ModelError, OptionError
from ..options.checks import shown
from ..options.generation_config import GenerationConfig
from ..options.keywords import LogitsProcessor
from . import penalties
from .draw import Place, sample_token
from .history import History, SequenceBreakers
from .truncation import Floats

NOTHING_LEFT = "nothing is left to choose from: the options together rule out every token; leave some out"
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram_size", "dry_multiplier")


class Mask(Protocol):
    """A constraint's mask over the logits; `grammar` makes constraints."""

    def mask(self, scores: Floats) -> None:
        """Set the scores [vocabulary] of ids that are not allowed to -inf, in place."""


class Chooser:
    """Chooses the tokens of one text, one after the other.

    `token_ids` are always the new ids so far; `prompt_ids` matter to the penalties that read the prompt too. `piece` returns the
    text of an id; without it (a package without a tokenizer) no id breaks a sequence for DRY.
    """

    def __init__(
        self,
        config: GenerationConfig,
        *,
        prompt_ids: Sequence[int],
        eos_ids: Collection[int],
        piece: Callable[[int], str] | None = None,
        sample: int = 0,
        constraint: Mask | None = None,
    ) -> None:
        assert config.seed is not None, "the caller has drawn the seed"
        self.config, self.eos_ids, self.sample, self.constraint = config, eos_ids, sample, constraint
        self.history, self.prompt_ids = History(prompt_ids), list(prompt_ids)
        self.bias_ids = np.array([token_id for token_id, _ in config.logit_bias], dtype=np.intp)
        self.biases = np.array([bias for _, bias in config.logit_bias], dtype=np.float32)
        self.never = [each[0] for each in config.bad_words_ids if len(each) == 1]
        self.never += list(eos_ids) if config.ignore_eos else []
        self.sequences = [each for each in config.bad_words_ids if len(each) > 1]
        self.breaks = SequenceBreakers(config.dry_sequence_breakers, piece)
        defaults = {field.name: field.default for field in dataclasses.fields(config)}
        self.remembers = bool(self.sequences) or any(getattr(config, name) != defaults[name] for name in PENALTIES)
        asks = self.never or config.logit_bias or config.logits_processor
        self.changes = self.remembers or bool(asks) or constraint is not None

    def choose(self, logits: Floats, token_ids: Sequence[int], *, banned: Collection[int] = (), attempt: int = 0) -> int:
        """Choose the next id by logits [vocabulary], which are not changed.

        `banned` ids are excluded from this choice only; another `attempt` draws another random number. Raises `ModelError` if the
        logits are not numbers, and `OptionError` if the options exclude every id.
        """
        scores = self.process(logits, token_ids, banned=banned)
        try:
            return sample_token(scores, self.config, self.place(token_ids, attempt))
        except ModelError:
            if np.isneginf(scores.max()) and np.isfinite(logits.max()):
                raise OptionError(NOTHING_LEFT) from None
            raise

    def place(self, token_ids: Sequence[int], attempt: int = 0) -> Place:
        """The place of the next random number."""
        assert self.config.seed is not None, "the caller has drawn the seed"
        return Place(self.config.seed, self.sample, len(token_ids), attempt)

    def process(self, logits: Floats, token_ids: Sequence[int], *, banned: Collection[int] = ()) -> Floats:
        """Apply every stage before temperature; returns a new array [vocabulary], or `logits` itself if no stage is on.

        Beam search passes log-probabilities instead of logits.
        """
        config = self.config
        is_early = len(token_ids) < config.min_new_tokens
        if not (self.changes or banned or is_early):
            return logits
        scores = logits.copy()
        if self.constraint is not None:
            self.constraint.mask(scores)
        if self.bias_ids.size:
            penalties.add_biases(scores, self.bias_ids, self.biases)
        penalties.ban(scores, [*self.never, *banned])
        if self.remembers:
            self.history.sync(token_ids)
            self.penalise(scores)
        if is_early:
            penalties.ban(scores, list(self.eos_ids))
        if config.logits_processor is not None:
            scores = processed(config.logits_processor, [*self.prompt_ids, *token_ids], scores)
            if self.constraint is not None:
                self.constraint.mask(scores)
        return scores

    def penalise(self, scores: Floats) -> None:
        """Apply the stages that depend on the text so far."""
        config, history = self.config, self.history
        penalties.ban(scores, penalties.ids_completing_sequences(history.ids.array, self.sequences))
        if config.repetition_penalty != 1:
            penalties.penalise_repetition(scores, history.unique.array, config.repetition_penalty)
        if config.presence_penalty or config.frequency_penalty:
            ids, counts = history.new_unique.array, history.counts.array.astype(np.float32)
            presence, frequency = config.presence_penalty, config.frequency_penalty
            penalties.penalise_presence_and_frequency(scores, ids, counts, presence=presence, frequency=frequency)
        if config.no_repeat_ngram_size:
            penalties.ban(scores, penalties.ids_completing_ngrams(history.ids.array, config.no_repeat_ngram_size))
        if config.dry_multiplier:
            ids = history.ids.last(config.dry_penalty_last_n)
            penalties.penalise_dry(
                scores,
                ids,
                multiplier=config.dry_multiplier,
                base=config.dry_base,
                allowed_length=config.dry_allowed_length,
                longest=self.breaks.since_last(ids),
            )


def processed(processor: LogitsProcessor, token_ids: list[int], scores: Floats) -> Floats:
    """Apply a caller's function to scores [vocabulary]; raises `OptionError` if the result is not such an array."""
    size, given = scores.size, processor(token_ids, scores)
    try:
        found: Floats = np.array(given, np.float32)
    except (TypeError, ValueError) as error:
        raise OptionError(f"logits_processor should return numbers, found {shown(given)}") from error
    if found.shape != (size,):
        raise OptionError(
            f"logits_processor should return {size:,} logits, one for each token; found the shape {list(found.shape)}"
        )
    if np.isnan(found).any():
        raise OptionError("logits_processor returned NaN, which is no number to choose by")
    return found
