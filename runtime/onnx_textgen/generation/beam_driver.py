"""Several texts for one prompt: the results of a beam search, which feeds the prompt once, or the best of the drawn texts."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence

import numpy as np

from ..cancellation import CancelScope, InterruptedRunError
from ..errors import OptionError
from ..inference.decoder import Decoder
from ..inference.graph_runner import Logits
from ..inference.prefill import prefill
from ..results import FinishReason, Generation
from ..sampling.draw import most_likely
from ..sampling.sampler import NOTHING_LEFT
from ..sampling.thinking import Rule
from ..sampling.truncation import Floats
from .beam_search import Beam, BeamSearch, Finished
from .continuation import Continuation


def joined(texts: Sequence[Generation]) -> Generation:
    """The first text, with all texts in its `sequences` if there is more than one."""
    return dataclasses.replace(texts[0], sequences=tuple(texts) if len(texts) > 1 else ())


def best_drawn(drawn: Sequence[Continuation], count: int, *, compares: bool) -> Sequence[Continuation]:
    """`count` of the texts drawn for one prompt: the first ones, or with `compares` the best, best first.

    Those that follow their rule are better than those that do not, then the more likely per token.
    """
    return sorted(drawn, key=lambda each: (each.follows_rule is False, -each.score))[:count] if compares else drawn[:count]


class BeamDriver:
    """Feeds the beams of one prompt through the rows of a decoder."""

    def __init__(self, decoder: Decoder, continuation: Continuation) -> None:
        self.decoder, self.continuation, config = decoder, continuation, continuation.config
        room = continuation.limits.context_length - len(continuation.prompt_ids)
        self.max_new_tokens = min(config.max_new_tokens, room)
        self.beams = BeamSearch(
            beams=config.num_beams,
            max_new_tokens=self.max_new_tokens,
            length_penalty=config.length_penalty,
            early_stopping=config.early_stopping,
            eos_count=len(continuation.limits.eos_ids),
        )
        self.rows = [0]
        """The row of the decoder that holds the text of each running beam."""
        self.constraints = [continuation.constraint]
        """The constraint of each running beam."""
        self.first_token = self.ended = 0.0

    def search(self, scope: CancelScope) -> Generation:
        """Search to the end, or return the best texts so far after a cancellation or deadline; `OptionError` if there is none."""
        reason: FinishReason | None = None
        with scope.active():
            try:
                logits = self.feed_prompt(scope)[None].repeat(self.decoder.rows, axis=0)
                while True:
                    self.step(logits)
                    self.first_token = self.first_token or time.perf_counter()
                    if self.beams.is_done:
                        break
                    logits = self.feed(scope)
            except InterruptedRunError as interrupted:
                reason = interrupted.reason
        self.ended = time.perf_counter()
        found = [self.result(each, reason) for each in self.beams.best()]
        if not found:
            raise OptionError(NOTHING_LEFT)
        found.sort(key=lambda each: (each.follows_rule is False, -(each.score or 0.0)))  # unfinished constraints come last
        return joined(found[: self.continuation.config.num_return_sequences])

    def feed_prompt(self, scope: CancelScope) -> Logits:
        """Feed and time the part of the prompt that the first row does not hold; returns logits [vocabulary] of the last token."""
        prompt_ids, start = self.continuation.prompt_ids, time.perf_counter()
        self.continuation.reused_tokens = self.decoder.reusable(prompt_ids)
        try:
            if self.continuation.source_ids:
                self.decoder.read_source(self.continuation.source_ids, scope=scope)
            return prefill(self.decoder, prompt_ids, scope=scope)
        finally:
            self.continuation.prefill_seconds = time.perf_counter() - start

    def step(self, logits: Logits) -> None:
        """Choose the next beams by the logits [rows, vocabulary] of the running ones."""
        constraints = self.constraints
        running = zip(self.rows, self.beams.running, constraints, strict=True)
        scores = np.stack([self.scores(logits[row], beam, constraint) for row, beam, constraint in running])
        self.beams.step(scores, functools.partial(self.ends, constraints))
        self.constraints = [constraint_after(constraints[beam.parent], beam.token_ids[-1]) for beam in self.beams.running]

    def scores(self, logits: Logits, beam: Beam, constraint: Rule | None) -> Floats:
        """Log-probabilities [vocabulary] of the next token of a beam, with its constraint and penalties applied."""
        chooser = self.continuation.chooser
        chooser.constraint = constraint
        return chooser.process(log_softmax(logits), beam.token_ids)

    def ends(self, constraints: list[Rule | None], beam: Beam) -> bool:
        """Return whether a text is complete; `constraints`: those of the beams before this step."""
        token_id = beam.token_ids[-1]
        if token_id in self.continuation.limits.eos_ids or len(beam.token_ids) >= self.max_new_tokens:
            return True
        constraint = constraint_after(constraints[beam.parent], token_id)
        return (constraint is not None and constraint.is_done) or self.continuation.stops_at(beam.token_ids)

    def feed(self, scope: CancelScope) -> Logits:
        """Give each beam a row with its text but the last token, then feed that token; returns logits [rows, vocabulary]."""
        running = self.beams.running
        self.rows = self.assign_rows([self.rows[beam.parent] for beam in running])
        token_ids, active = [0] * self.decoder.rows, [False] * self.decoder.rows
        for beam, row in zip(running, self.rows, strict=True):
            token_ids[row], active[row] = beam.token_ids[-1], True
        return self.decoder.step(token_ids, active, scope=scope)

    def assign_rows(self, sources: list[int]) -> list[int]:
        """Rows for beams that continue the rows `sources`: the first beam of a row keeps it, the others get copies in free rows."""
        free = sorted(set(range(self.decoder.rows)) - set(sources))
        kept, assigned = set[int](), list[int]()
        for row in sources:
            target = row if row not in kept else free.pop()
            self.decoder.fork(row, target)
            kept.add(row)
            assigned.append(target)
        return assigned

    def result(self, found: Finished, interrupted: FinishReason | None) -> Generation:
        """Turn a text of the search into a `Generation`."""
        made = self.continuation.fresh()
        for token_id in found.token_ids:
            if made.finish_reason is None:
                made.accept(token_id)
        if made.finish_reason is None:
            made.finish(interrupted or "context")
        made.first_token, made.ended = self.first_token or self.ended, self.ended
        return dataclasses.replace(made.result(), score=found.score)


def constraint_after(constraint: Rule | None, token_id: int) -> Rule | None:
    """A copy of the constraint, one token further."""
    if constraint is None:
        return None
    after = constraint.fork()
    after.accept(token_id)
    return after


def log_softmax(logits: Logits) -> Floats:
    """Log-probabilities [vocabulary], normalised in float64; raises `ModelError` if the logits are not numbers."""
    shifted = logits - logits[most_likely(logits)]
    result: Floats = shifted - np.float32(np.log(np.exp(shifted).sum(dtype=np.float64)))
    return result
