"""Drafts from a smaller model with the same tokenizer, a draft model (Leviathan et al. 2023; transformers' assistant model).

The draft model chooses with the text's own options and random numbers. If both models predict alike they also draw alike, so a
draft can be right at any temperature. A draft ends before the first token that the draft model is not sure of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence

import numpy as np

from ..cancellation import CancelScope, InterruptedRunError
from ..errors import LOG, ModelError, first_line
from ..inference.decoder import Decoder
from ..inference.graph_runner import Logits
from ..inference.prefix_cache import PrefixStore
from ..inference.scoring import target_logprobs
from ..options.generation_config import GenerationConfig
from ..sampling.sampler import Chooser
from ..text.prefixes import common_prefix
from .drafter import RUN_COSTS, Drafter

STEP_SECONDS, LAYER_SECONDS, BYTES_PER_SECOND = 1e-4, 6e-5, 2e10
"""Time of a step of any model, time that each layer adds to it, and how fast weights are read."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A draft model, as a text needs it."""

    new_decoder: Callable[[], Decoder]
    """Makes a decoder of the draft model with an empty cache."""
    prefixes: PrefixStore
    """The draft model's prefix cache."""
    cost: float
    """Time of a run of the draft model, as a share of the large model's."""


def step_seconds(layers: int, weight_bytes: int) -> float:
    """Estimate the time of a model's step on a CPU of two cores; only the ratio of two estimates matters.

    >>> f"{step_seconds(30, 80_000_000):.4f}"
    '0.0059'
    """
    return STEP_SECONDS + LAYER_SECONDS * layers + weight_bytes / BYTES_PER_SECOND


class Assistant(Drafter):
    """The drafts of a smaller model for one text."""

    name = "assistant model"
    """Its name in the log."""

    def __init__(
        self,
        source: Source,
        prompt_ids: Sequence[int],
        config: GenerationConfig,
        *,
        vocab_size: int,
        eos_ids: Collection[int],
        piece: Callable[[int], str] | None,
        sample: int = 0,
    ) -> None:
        """`vocab_size`, `eos_ids` and `piece` are the large model's; the smaller one may have a few ids more or fewer."""
        run_cost = RUN_COSTS[config.draft_verification]
        super().__init__(prompt_ids, config.num_assistant_tokens, cost=source.cost, run_cost=run_cost)
        self.source, self.vocab_size, self.eos_ids = source, vocab_size, eos_ids
        self.threshold = config.assistant_confidence_threshold
        self.chooser = Chooser(config, prompt_ids=prompt_ids, eos_ids=eos_ids, piece=piece, sample=sample)
        self.decoder: Decoder | None = None
        self.known = 0
        """Tokens at the beginning of the decoder's cache that certainly equal the text's."""
        self.has_failed = False

    def guess(self, most: int, scope: CancelScope) -> list[int]:
        """The draft model's continuation, up to the first token that it is not sure of; [] after a failure, which is logged."""
        if self.has_failed:
            return []
        try:
            return self.draft(most, scope)
        except InterruptedRunError:
            raise
        except Exception as error:  # noqa: BLE001 - such as too little memory: the text needs no drafts
            self.has_failed = True
            self.close()
            LOG.warning("the %s failed and drafts no more tokens for this text: %s", self.name, first_line(error))
            return []

    def draft(self, most: int, scope: CancelScope) -> list[int]:
        """Like `guess`, but raises errors."""
        decoder = self.decoder = self.decoder or self.source.new_decoder()
        most = min(most, decoder.geometry.context_length - len(self.text))
        if most < 1:
            return []
        logits, draft = self.catch_up(decoder, scope), list[int]()
        while True:
            text = [*self.text[self.prompt_tokens :], *draft]
            try:
                token_id = self.chooser.choose(logits, text)
            except ModelError:  # every token that the rule allows is missing from a draft model with fewer ids
                return draft
            if token_id in self.eos_ids or float(target_logprobs(logits[None], np.array([token_id]))[0]) < np.log(self.threshold):
                return draft
            draft.append(token_id)
            if len(draft) == most:
                return draft
            logits = self.feed(decoder, [token_id], scope)

    def close(self) -> None:
        """Release the draft model's keys and values."""
        self.decoder = None

    def catch_up(self, decoder: Decoder, scope: CancelScope) -> Logits:
        """Feed the tokens of the text that the draft model has not seen; returns the logits [vocabulary] of the last one."""
        if not decoder.token_ids[0]:
            self.source.prefixes.prepare(decoder, self.text)
        held = decoder.token_ids[0]
        shared = min(self.known + common_prefix(held[self.known :], self.text[self.known :]), len(self.text) - 1)
        shared = decoder.nearest(shared)
        decoder.rewind(shared)
        if shared < self.prompt_tokens < len(self.text):
            self.feed(decoder, self.text[shared : self.prompt_tokens], scope)
            self.source.prefixes.keep(decoder, self.prompt_tokens)
            shared = self.prompt_tokens
        self.known = len(self.text)
        return self.feed(decoder, self.text[shared:], scope)

    def feed(self, decoder: Decoder, token_ids: Sequence[int], scope: CancelScope) -> Logits:
        """Feed tokens, in parts if there are many; returns the logits [vocabulary of the large model] of the last one."""
        for start in range(0, len(token_ids), decoder.part_size):
            logits: Logits = decoder.feed(token_ids[start : start + decoder.part_size], scope=scope)[-1]
        if len(logits) == self.vocab_size:
            return logits
        fitted: Logits = np.full(self.vocab_size, -np.inf, np.float32)
        fitted[: len(logits)] = logits[: self.vocab_size]
        return fitted
