"""Which tokens may follow where texts have times: the rules of Whisper's paper (arXiv 2212.04356, section 4.5) and its own decoder.

Times come in pairs, the end of a stretch and the beginning of the next, and never go back. Where times are together likelier than
any token of text, one of them has to come.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..package.manifest import SpeechRecord

Scores = npt.NDArray[np.floating]
NEVER = -np.inf


@dataclasses.dataclass(slots=True)
class TimestampRule:
    """Changes the scores of the next token; a `LogitsProcessor`. It also adds up how likely the tokens were, of one text."""

    about: SpeechRecord
    prompt_tokens: int
    """Ids before the text."""
    end_id: int
    """The first control token; ids below it are text."""
    with_times: bool = True
    last: Scores | None = None
    """Log-probabilities of the token after those that were seen."""
    total: float = 0.0
    """Log-probability of the tokens that were seen."""

    def __call__(self, ids: list[int], scores: Scores) -> Scores:
        """The scores [vocabulary], those of tokens that may not follow minus infinity."""
        made, text = self.allowed(ids, scores), ids[self.prompt_tokens :]
        self.see(text[-1] if text else None)
        self.last = made - np.logaddexp.reduce(made)
        return made

    def see(self, token_id: int | None) -> None:
        """Count a token that followed."""
        if token_id is not None and self.last is not None:
            self.total += float(self.last[token_id])
        self.last = None

    def mean_logprob(self, text: Sequence[int], *, ended: bool) -> float:
        """The mean log-probability of the tokens of a finished text, with its end if it has one; called once."""
        self.see(self.end_id if ended else text[-1] if text else None)
        return self.total / (len(text) + 1)

    def allowed(self, ids: list[int], scores: Scores) -> Scores:
        """The scores of the tokens that may follow."""
        made, text, first = np.array(scores), ids[self.prompt_tokens :], self.about.no_timestamps_id + 1
        if not text:
            made[list(self.about.never_first_ids)] = NEVER
        if not self.with_times:
            return made
        made[self.about.no_timestamps_id] = NEVER
        times = [each for each in text if each >= first]
        was_time, before_was_time = (len(text) < number or text[-number] >= first for number in (1, 2))
        if text and was_time:
            if before_was_time:
                made[first:] = NEVER  # a pair is complete: text follows
            else:
                made[: self.end_id] = NEVER  # the second of a pair, or the end
        if times:
            made[first : times[-1] + (0 if was_time and not before_was_time else 1)] = NEVER
        if not text:
            made[:first] = NEVER
            made[first + self.about.latest_first + 1 :] = NEVER
        if np.logaddexp.reduce(made[first:]) > made[:first].max():
            made[:first] = NEVER
        return made
