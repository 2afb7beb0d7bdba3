"""Several texts for one prompt: found by beam search, over one prompt that is fed once, or the best of those that were drawn."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence

import numpy as np

from ..cancellation import InterruptedRunError, Watch
from ..errors import OptionError
from ..inference.decoder import Decoder
from ..inference.graph_runner import Logits
from ..inference.prefill import prefill
from ..results import FinishReason, Generation
from ..sampling.draw import most_likely
from ..sampling.grammar import Constraint
from ..sampling.sampler import NOTHING_LEFT
from ..sampling.truncation import Floats
from .beam_search import Beam, BeamSearch, Finished, diverse
from .continuation import Continuation


def joined(texts: Sequence[Generation]) -> Generation:
    """The best text, with all of them in its `sequences`."""
    return dataclasses.replace(texts[0], sequences=tuple(texts) if len(texts) > 1 else ())


def best_drawn(drawn: Sequence[Continuation], count: int, *, compares: bool) -> Sequence[Continuation]:
    """The first `count` of the texts that were drawn for one prompt; with `compares` the likeliest per token, best first."""
    return sorted(drawn, key=lambda each: -each.score)[:count] if compares else drawn[:count]


class BeamDriver:
    """Feeds the beams of one prompt through the rows of a decoder."""

    def __init__(self, decoder: Decoder, continuation: Continuation) -> None:
        self.decoder, self.continuation, config = decoder, continuation, continuation.config
        room = continuation.limits.context_length - len(continuation.prompt_ids)
        self.max_new_tokens = min(config.max_new_tokens, room)
        self.groups = [
            BeamSearch(
                beams=config.num_beams // config.num_beam_groups,
                max_new_tokens=self.max_new_tokens,
                length_penalty=config.length_penalty,
                early_stopping=config.early_stopping,
                ends_of_text=len(continuation.limits.eos_ids),
            )
            for _ in range(config.num_beam_groups)
        ]
        self.rows = [[0] for _ in self.groups]
        """For each running beam of a group, the decoder's row that holds its text."""
        self.rules = [[continuation.constraint] for _ in self.groups]
        """For each running beam of a group, what its rule allows next."""
        self.first_token = self.ended = 0.0

    def search(self, watch: Watch) -> Generation:
        """Search to the end; a cancellation or a deadline gives the best so far."""
        reason: FinishReason | None = None
        with watch.active():
            try:
                logits = self.feed_prompt(watch)[None].repeat(self.decoder.rows, axis=0)
                while True:
                    self.step(logits)
                    self.first_token = self.first_token or time.perf_counter()
                    if all(group.is_done for group in self.groups):
                        break
                    logits = self.feed(watch)
            except InterruptedRunError as interrupted:
                reason = interrupted.reason
        self.ended = time.perf_counter()
        found = [self.result(each, reason) for group in self.groups for each in group.best()]
        if not found:
            raise OptionError(NOTHING_LEFT)
        found.sort(key=lambda each: (each.follows_rule is False, -(each.score or 0.0)))  # what was cut off comes last
        return joined(found[: self.continuation.config.num_return_sequences])

    def feed_prompt(self, watch: Watch) -> Logits:
        """Feed what the first row does not hold yet of the prompt, by the clock; the logits [vocabulary] of its last token."""
        prompt_ids, start = self.continuation.prompt_ids, time.perf_counter()
        self.continuation.reused_tokens = self.decoder.reusable(prompt_ids)
        try:
            return prefill(self.decoder, prompt_ids, watch=watch)
        finally:
            self.continuation.prefill_seconds = time.perf_counter() - start

    def step(self, logits: Logits) -> None:
        """Have each group choose, the earlier groups' choices known to the later ones."""
        taken: list[int] = []
        for index, group in enumerate(self.groups):
            if group.is_done:
                continue
            rules = self.rules[index]
            beams = zip(self.rows[index], group.running, rules, strict=True)
            scores = np.stack([self.scores(logits[row], beam, rule) for row, beam, rule in beams])
            group.step(diverse(scores, taken, self.continuation.config.diversity_penalty), functools.partial(self.ends, rules))
            self.rules[index] = [behind(rules[beam.parent], beam.token_ids[-1]) for beam in group.running]
            taken += [beam.token_ids[-1] for beam in group.running]

    def scores(self, logits: Logits, beam: Beam, rule: Constraint | None) -> Floats:
        """Log-probabilities [vocabulary] of what may follow a beam."""
        chooser = self.continuation.chooser
        chooser.constraint = rule
        return chooser.process(log_softmax(logits), beam.token_ids)

    def ends(self, rules: list[Constraint | None], beam: Beam) -> bool:
        """Whether a text is complete; `rules`: those of the beams that it may go on with."""
        token_id = beam.token_ids[-1]
        if token_id in self.continuation.limits.eos_ids or len(beam.token_ids) >= self.max_new_tokens:
            return True
        rule = behind(rules[beam.parent], token_id)
        return (rule is not None and rule.is_done) or self.continuation.stops_at(beam.token_ids)

    def feed(self, watch: Watch) -> Logits:
        """Give each beam a row that holds the text before its last token, then feed that token; logits [rows, vocabulary]."""
        groups = [[] if group.is_done else group.running for group in self.groups]
        self.rows = self.arrange([[rows[beam.parent] for beam in beams] for beams, rows in zip(groups, self.rows, strict=True)])
        token_ids, active = [0] * self.decoder.rows, [False] * self.decoder.rows
        for beams, rows in zip(groups, self.rows, strict=True):
            for beam, row in zip(beams, rows, strict=True):
                token_ids[row], active[row] = beam.token_ids[-1], True
        return self.decoder.step(token_ids, active, watch=watch)

    def arrange(self, sources: list[list[int]]) -> list[list[int]]:
        """Rows for beams that go on from the rows `sources`: the first of a row keeps it, the others get copies in free ones."""
        free = sorted(set(range(self.decoder.rows)) - {row for rows in sources for row in rows})
        kept, arranged = set[int](), list[list[int]]()
        for rows in sources:
            arranged.append([])
            for row in rows:
                target = row if row not in kept else free.pop()
                self.decoder.fork(row, target)
                kept.add(row)
                arranged[-1].append(target)
        return arranged

    def result(self, found: Finished, interrupted: FinishReason | None) -> Generation:
        """A text of the search as a generation."""
        made = self.continuation.fresh()
        for token_id in found.token_ids:
            if made.finish_reason is None:
                made.accept(token_id)
        if made.finish_reason is None:
            made.finish(interrupted or "context")
        made.first_token, made.ended = self.first_token or self.ended, self.ended
        return dataclasses.replace(made.result(), score=found.score)


def behind(rule: Constraint | None, token_id: int) -> Constraint | None:
    """What a rule allows behind one more token; the rule itself stays where it is."""
    if rule is None:
        return None
    after = rule.fork()
    after.accept(token_id)
    return after


def log_softmax(logits: Logits) -> Floats:
    """Logarithms of the probabilities [vocabulary], added up in float64; raises `ModelError` if the logits are not numbers."""
    shifted = logits - logits[most_likely(logits)]
    result: Floats = shifted - np.float32(np.log(np.exp(shifted).sum(dtype=np.float64)))
    return result
