"""Beam search as a rule over arrays: which texts to keep, which are finished, and when no better one can come.

The rule is that of transformers' `generate`: of the likeliest continuations of all running texts, enough are looked at that
`num_beams` can go on even if the others end; those among the first `num_beams` that end are finished, with a score of
log-probability divided by length to the power of the length penalty. Diverse groups (Vijayakumar et al. 2016) search one after the
other at each step, and lose `diversity_penalty` on a token for each beam of an earlier group that has just taken it.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from ..sampling.truncation import Floats


@dataclasses.dataclass(frozen=True, slots=True)
class Beam:
    """A text that is searched on."""

    token_ids: list[int]
    log_probability: float
    parent: int = 0
    """The place among the beams before of the text that it goes on with."""


Ends = Callable[[Beam], bool]
"""Whether a text that goes on with one of the beams before is finished."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """A text that is complete; its ids end with the token that ended it."""

    token_ids: list[int]
    score: float


class BeamSearch:
    """One group of beams over one prompt."""

    def __init__(
        self,
        *,
        beams: int,
        max_new_tokens: int,
        length_penalty: float,
        early_stopping: bool | Literal["never"],
        ends_of_text: int,
    ) -> None:
        """`ends_of_text`: how many ids end a text; so many more candidates are looked at."""
        self.width, self.max_new_tokens = beams, max_new_tokens
        self.length_penalty, self.early_stopping = length_penalty, early_stopping
        self.looked_at = max(2, 1 + ends_of_text) * beams
        self.running = [Beam([], 0.0)]
        self.finished: list[Finished] = []
        """At most `beams`, the best first."""
        self.can_improve = True

    @property
    def is_done(self) -> bool:
        """Whether the search is over."""
        full = len(self.finished) >= self.width and self.early_stopping is True
        return full or not self.can_improve or not self.running

    def step(self, log_probabilities: Floats, ends: Ends) -> None:
        """Take the log-probabilities [running, vocabulary] of each running text's next token."""
        candidates = self.best_candidates(log_probabilities)
        if not candidates:  # everything was ruled out
            self.running = []
            return
        ended = [ends(candidate) for candidate in candidates]
        length = len(candidates[0].token_ids)
        may_finish = self.can_improve and not (self.early_stopping is True and len(self.finished) >= self.width)
        if may_finish:
            new = zip(candidates[: self.width], ended, strict=False)
            finished = [Finished(each.token_ids, self.score(each.log_probability, length)) for each, is_end in new if is_end]
            self.finished = sorted([*self.finished, *finished], key=operator.attrgetter("score"), reverse=True)[: self.width]
        going = [candidate for candidate, is_end in zip(candidates, ended, strict=True) if not is_end]
        self.running = going[: self.width]
        if self.running and len(self.finished) >= self.width:
            hypothetical = self.max_new_tokens if self.early_stopping == "never" and self.length_penalty > 0 else length
            best = self.score(self.running[0].log_probability, hypothetical)
            self.can_improve = self.can_improve and best > self.finished[-1].score

    def best_candidates(self, log_probabilities: Floats) -> list[Beam]:
        """The likeliest continuations of all running texts, the best first; of equal ones the first beam's, then the lowest id."""
        sums = log_probabilities + np.array([beam.log_probability for beam in self.running], np.float32)[:, None]
        flat, size = sums.reshape(-1), sums.shape[1]
        count = min(self.looked_at, flat.size)
        border = np.partition(flat, flat.size - count)[flat.size - count]
        places = np.flatnonzero(flat >= border)
        places = places[np.argsort(-flat[places], kind="stable")][:count]
        return [
            Beam([*self.running[place // size].token_ids, place % size], float(flat[place]), place // size)
            for place in places.tolist()
            if np.isfinite(flat[place])
        ]

    def score(self, log_probability: float, length: int) -> float:
        """What texts are compared by."""
        return float(log_probability / length**self.length_penalty)

    def best(self) -> list[Finished]:
        """The finished texts, the best first; where the search was ended early, the running ones behind them."""
        rest = [Finished(each.token_ids, self.score(each.log_probability, max(1, len(each.token_ids)))) for each in self.running]
        return [*self.finished, *rest][: self.width]


def diverse(log_probabilities: Floats, taken: Sequence[int], penalty: float) -> Floats:
    """Log-probabilities [running, vocabulary] less the penalty for each time that an earlier group took a token."""
    if not taken or not penalty:
        return log_probabilities
    tokens, counts = np.unique(np.asarray(taken), return_counts=True)
    changed = log_probabilities.copy()
    changed[:, tokens] -= np.float32(penalty) * counts.astype(np.float32)
    return changed
