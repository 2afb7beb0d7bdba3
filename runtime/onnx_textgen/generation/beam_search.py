"""Beam search over arrays: which texts to keep, which are finished, and when no better one can follow.

The algorithm is that of transformers' `generate`. Each step considers the most likely continuations of all running texts, enough
that `num_beams` can continue even if the others end. Those among the first `num_beams` that end are finished, with a score of
log-probability divided by length to the power of the length penalty.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Literal

import numpy as np

from ..sampling.truncation import Floats


@dataclasses.dataclass(frozen=True, slots=True)
class Beam:
    """A text that the search may continue."""

    token_ids: list[int]
    log_probability: float
    parent: int = 0
    """Index of the beam of the step before that it continues."""


Ends = Callable[[Beam], bool]
"""Whether a text, which continues a beam of the step before, is finished."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """A complete text; its last id is the token that ended it."""

    token_ids: list[int]
    score: float


class BeamSearch:
    """The beams of one prompt."""

    def __init__(
        self,
        *,
        beams: int,
        max_new_tokens: int,
        length_penalty: float,
        early_stopping: bool | Literal["never"],
        eos_count: int,
    ) -> None:
        """`eos_count`: number of ids that end a text; for each, `beams` more candidates are considered."""
        self.width, self.max_new_tokens = beams, max_new_tokens
        self.length_penalty, self.early_stopping = length_penalty, early_stopping
        self.candidate_count = max(2, 1 + eos_count) * beams
        self.running = [Beam([], 0.0)]
        self.finished: list[Finished] = []
        """At most `beams`, best first."""
        self.can_improve = True

    @property
    def is_done(self) -> bool:
        """Whether the search is over."""
        full = len(self.finished) >= self.width and self.early_stopping is True
        return full or not self.can_improve or not self.running

    def step(self, log_probabilities: Floats, ends: Ends) -> None:
        """Do a step with the log-probabilities [running, vocabulary] of each running text's next token."""
        candidates = self.best_candidates(log_probabilities)
        if not candidates:  # no token is allowed
            self.running = []
            return
        ended = [ends(candidate) for candidate in candidates]
        length = len(candidates[0].token_ids)
        may_finish = self.can_improve and not (self.early_stopping is True and len(self.finished) >= self.width)
        if may_finish:
            new = zip(candidates[: self.width], ended, strict=False)
            finished = [Finished(each.token_ids, self.score(each.log_probability, length)) for each, is_end in new if is_end]
            self.finished = sorted([*self.finished, *finished], key=operator.attrgetter("score"), reverse=True)[: self.width]
        ongoing = [candidate for candidate, is_end in zip(candidates, ended, strict=True) if not is_end]
        self.running = ongoing[: self.width]
        if self.running and len(self.finished) >= self.width:
            hypothetical = self.max_new_tokens if self.early_stopping == "never" and self.length_penalty > 0 else length
            best = self.score(self.running[0].log_probability, hypothetical)
            self.can_improve = self.can_improve and best > self.finished[-1].score

    def best_candidates(self, log_probabilities: Floats) -> list[Beam]:
        """The most likely continuations of all running texts, best first; of equal ones the first beam's, then the lowest id."""
        sums = log_probabilities + np.array([beam.log_probability for beam in self.running], np.float32)[:, None]
        flat, size = sums.reshape(-1), sums.shape[1]
        count = min(self.candidate_count, flat.size)
        border = np.partition(flat, flat.size - count)[flat.size - count]
        places = np.flatnonzero(flat >= border)
        places = places[np.argsort(-flat[places], kind="stable")][:count]
        return [
            Beam([*self.running[place // size].token_ids, place % size], float(flat[place]), place // size)
            for place in places.tolist()
            if np.isfinite(flat[place])
        ]

    def score(self, log_probability: float, length: int) -> float:
        """The score by which texts are compared."""
        return float(log_probability / length**self.length_penalty)

    def best(self) -> list[Finished]:
        """The finished texts, best first; then the running ones, if the search was ended early."""
        rest = [Finished(each.token_ids, self.score(each.log_probability, max(1, len(each.token_ids)))) for each in self.running]
        return [*self.finished, *rest][: self.width]
