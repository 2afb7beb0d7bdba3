"""Drafts: guesses of a text's next tokens, so that the model verifies a few tokens in one run instead of making a run for each.

Each token is still chosen by the model's own logits: drafts save runs, and do not change a text that `verification` checks. The
number of tokens in a draft depends on how many were accepted so far, never on the clock, so a call always drafts the same tokens.
`prompt_lookup` and `draft_model` make the guesses.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from ..cancellation import CancelScope

COST_PER_TOKEN = 0.25
"""Time that one more token adds to a run, as a share of a run of one token; about right for 4-bit products on a CPU."""
EXACT_COST_PER_TOKEN = 0.3
"""The same, with attention token by token: 0.2 to 0.3 of a step of 135 M weights at 8 and 4 bits after 200 tokens."""
RUN_COSTS = {"exact": EXACT_COST_PER_TOKEN, "fast": COST_PER_TOKEN}
"""By `draft_verification`."""
MEMORY = 0.8
"""Factor by which each draft reduces the weight of the earlier ones."""
FIRST_RIGHT, FIRST_WRONG = 1.5, 0.5
"""Counts before the first draft: three guesses of four are assumed to be right."""
AFTER_PAUSE, MARGIN = 1.8, 0.03
"""Weight of the counts after a pause, and how far the assumed chance is above the one at which drafts save no time."""
FIRST_PAUSE, LONGEST_PAUSE = 8, 256
"""Tokens without drafts, after drafts that saved no time; doubled each time."""


def best_length(chance: float, cost: float, most: int) -> int:
    """Find the draft length with the most tokens per time, 0 if drafts save none; Leviathan et al. 2023, theorem 3.8.

    `chance`: that a guess is right if those before it are; `cost`: time of each guess, as a share of a run of one token.

    >>> [best_length(chance, 0.25, 8) for chance in (0.2, 0.3, 0.75, 0.99)]
    [0, 1, 3, 8]
    """
    best, most_gained, tokens, all_right = 0, 1.0, 1.0, 1.0
    for length in range(1, most + 1):
        all_right *= chance
        tokens += all_right
        if (gained := tokens / (1 + cost * length)) > most_gained:
            best, most_gained = length, gained
    return best


class Drafter(abc.ABC):
    """The drafts for one text."""

    def __init__(self, prompt_ids: Sequence[int], most: int, *, cost: float = 0.0, run_cost: float = COST_PER_TOKEN) -> None:
        """`most`: tokens of a draft; `cost`, `run_cost`: time to make and to verify a guess, as a share of a run of the model."""
        self.prompt_tokens, self.most, self.cost, self.run_cost = len(prompt_ids), most, cost, run_cost
        self.text = list(prompt_ids)
        """Prompt and text, up to the last call of `propose`."""
        self.right, self.wrong = FIRST_RIGHT, FIRST_WRONG
        """Weighted counts of recent guesses; those after the first wrong one of a draft do not count."""
        self.length = best_length(FIRST_RIGHT / (FIRST_RIGHT + FIRST_WRONG), cost + run_cost, most)
        """Tokens of the next draft; 0 from the start if guesses take so long that they never save time."""
        self.pause, self.paused_until = FIRST_PAUSE, 0
        self.drafted = self.accepted = 0
        self.pending = 0
        """Tokens of the draft that has not been verified yet."""

    @abc.abstractmethod
    def guess(self, most: int, scope: CancelScope) -> list[int]:
        """Tokens that may follow `text`; at most `most` of them, often none."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release the memory that drafts need; the counts stay."""

    def propose(self, token_ids: Sequence[int], room: int, scope: CancelScope) -> list[int]:
        """Draft at most `room` tokens after the prompt and `token_ids`, which begin with those of the call before."""
        self.text += token_ids[len(self.text) - self.prompt_tokens :]
        if self.length == 0 or len(self.text) < self.paused_until:
            return []
        most = min(self.length, room)
        draft = self.guess(most, scope)
        if len(draft) < most and self.cost:  # the guess that ended the draft took time too
            self.wrong += self.cost / (self.cost + self.run_cost)
        if draft:
            self.pending = len(draft)
        elif self.cost:
            self.update(0, 0)
        return draft

    def record_accepted(self, accepted: int) -> None:
        """Record how many of the last draft's tokens were accepted."""
        drafted, self.pending = self.pending, 0
        if drafted:
            self.drafted += drafted
            self.accepted += accepted
            self.update(accepted, drafted)

    def update(self, accepted: int, drafted: int) -> None:
        """Update the counts, and choose the next draft's length or a pause."""
        self.right = MEMORY * self.right + accepted
        self.wrong = MEMORY * self.wrong + (accepted < drafted)
        cost = self.cost + self.run_cost
        self.length = best_length(self.right / (self.right + self.wrong), cost, self.most)
        if self.length == 0:
            self.paused_until = len(self.text) + accepted + self.pause
            self.pause = min(2 * self.pause, LONGEST_PAUSE)
            prior = min(cost + MARGIN, 1.0)
            self.length, self.right, self.wrong = 1, AFTER_PAUSE * prior, AFTER_PAUSE * (1 - prior)
        elif accepted == drafted > 0:
            self.pause = FIRST_PAUSE
