"""Guessing the next tokens of a text, so that the model checks several of them in one run instead of making a run for each.

The choice at each place is made as ever, with the model's logits there: guesses save runs, and change no text where `verification`
checks them. How many are made,
and whether at all, follows from how many were right so far, never from the clock: a call always guesses alike. Where the guesses
come from is `prompt_lookup`'s and `draft_model`'s business.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from ..cancellation import Watch

COST_PER_TOKEN = 0.25
"""What one token more makes a run longer, as a share of a run of one token; about what products of 4 bits take on a CPU."""
EXACT_COST_PER_TOKEN = 0.3
"""The same where each token is attended to by itself: 0.2 to 0.3 of a step of 135 M weights at 8 and 4 bits behind 200 tokens."""
RUN_COSTS = {"exact": EXACT_COST_PER_TOKEN, "fast": COST_PER_TOKEN}
"""By `draft_verification`."""
MEMORY = 0.8
"""How much of what was learned stays with each draft."""
FIRST_RIGHT, FIRST_WRONG = 1.5, 0.5
"""What counts as seen before the first draft: three guesses of four are right."""
AFTER_PAUSE, HOPE = 1.8, 0.03
"""What counts as seen after a pause, and how much better than not paying the guesses are taken to be."""
FIRST_PAUSE, LONGEST_PAUSE = 8, 256
"""Tokens without drafts after those that did not pay; doubled each time."""


def best_length(chance: float, cost: float, most: int) -> int:
    """How many guesses make the most tokens per time, 0 where none pays; Leviathan et al. 2023, theorem 3.8.

    `chance`: that a guess is right, given that those before it are; `cost`: what each takes, as a share of a run of one token.

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
    """The guesses for one text."""

    def __init__(self, prompt_ids: Sequence[int], most: int, *, cost: float = 0.0, run_cost: float = COST_PER_TOKEN) -> None:
        """`most`: tokens of a draft; `cost`: of making a guess, as a share of a run of the model; `run_cost`: of checking it."""
        self.prompt_tokens, self.most, self.cost, self.run_cost = len(prompt_ids), most, cost, run_cost
        self.text = list(prompt_ids)
        """Prompt and text, as far as they were told."""
        self.right, self.wrong = FIRST_RIGHT, FIRST_WRONG
        """Recent guesses; a draft ends with the first that is wrong."""
        self.length = best_length(FIRST_RIGHT / (FIRST_RIGHT + FIRST_WRONG), cost + run_cost, most)
        """Of the next draft; 0 at the beginning where guesses take so long that none ever pays."""
        self.pause, self.paused_until = FIRST_PAUSE, 0
        self.drafted = self.accepted = 0
        self.waiting = 0
        """Tokens of the draft that has not been judged yet."""

    @abc.abstractmethod
    def guess(self, most: int, watch: Watch) -> list[int]:
        """What may follow `text`; at most so many tokens, often none."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what guessing takes; what was counted stays."""

    def propose(self, token_ids: Sequence[int], room: int, watch: Watch) -> list[int]:
        """What may follow the prompt and `token_ids`, which go on from those of the call before; at most `room` tokens."""
        self.text += token_ids[len(self.text) - self.prompt_tokens :]
        if self.length == 0 or len(self.text) < self.paused_until:
            return []
        most = min(self.length, room)
        draft = self.guess(most, watch)
        if len(draft) < most and self.cost:  # the guess that would have come next took its time too
            self.wrong += self.cost / (self.cost + self.run_cost)
        if draft:
            self.waiting = len(draft)
        elif self.cost:
            self.learn(0, 0)
        return draft

    def judge(self, accepted: int) -> None:
        """Learn how many of the last draft's tokens were right."""
        drafted, self.waiting = self.waiting, 0
        if drafted:
            self.drafted += drafted
            self.accepted += accepted
            self.learn(accepted, drafted)

    def learn(self, accepted: int, drafted: int) -> None:
        """Decide on the next draft's length, and on a pause."""
        self.right = MEMORY * self.right + accepted
        self.wrong = MEMORY * self.wrong + (accepted < drafted)
        cost = self.cost + self.run_cost
        self.length = best_length(self.right / (self.right + self.wrong), cost, self.most)
        if self.length == 0:
            self.paused_until = len(self.text) + accepted + self.pause
            self.pause = min(2 * self.pause, LONGEST_PAUSE)
            hope = min(cost + HOPE, 1.0)
            self.length, self.right, self.wrong = 1, AFTER_PAUSE * hope, AFTER_PAUSE * (1 - hope)
        elif accepted == drafted > 0:
            self.pause = FIRST_PAUSE
