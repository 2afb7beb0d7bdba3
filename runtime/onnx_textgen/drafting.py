"""Prompt lookup: guess the next tokens from what came before in the text, and let the model check them in one run.

Where the last few tokens have come before, what followed them then is fed together with the newest token (Saxena 2023, and
transformers' prompt lookup). The choice at each place is made as ever, with the model's logits there; guesses only save runs.
How many are guessed, and whether at all, follows from how many were right so far, never from the clock: a call always guesses
alike.
"""

from __future__ import annotations

from collections.abc import Sequence

FIRST_LENGTH = 3
"""Tokens of the first draft."""
COST_PER_TOKEN = 0.2
"""What one token more makes a run longer, as a share of a run of one token; about what products of 4 and 8 bits take on a CPU."""
MEMORY = 0.8
"""How much of what was learned stays with each draft."""
FIRST_PAUSE, LONGEST_PAUSE = 8, 256
"""Tokens without drafts after those that did not pay; doubled each time."""


class Drafter:
    """The guesses for one text."""

    def __init__(self, most: int, longest_match: int) -> None:
        """`most`: tokens of a draft; `longest_match`: tokens that are looked for at the text's end, at first."""
        self.most, self.longest_match = most, longest_match
        self.length = min(FIRST_LENGTH, most)
        self.places: dict[tuple[int, ...], int] = {}
        """Behind each run of tokens that came: where the text went on, the last time."""
        self.seen = 0
        self.gain = 1.0
        """Tokens per draft over its cost, in recent ones; above 1 drafts pay."""
        self.pause, self.paused_until = FIRST_PAUSE, 0
        self.drafted = self.accepted = 0
        self.waiting = 0
        """Tokens of the draft that has not been judged yet."""

    def propose(self, token_ids: Sequence[int], room: int) -> list[int]:
        """What may follow the text; at most `room` tokens, often none."""
        self.learn(token_ids)
        end = len(token_ids)
        if end < self.paused_until:
            return []
        shortest = 1 if self.gain > 1 or self.longest_match == 1 else 2  # one token alone has come before too often
        for size in range(min(self.longest_match, end), shortest - 1, -1):
            place = self.places.get(tuple(token_ids[end - size :]))
            if place is not None:
                draft = list(token_ids[place : place + min(self.length, room)])
                period = len(draft)
                while len(draft) < min(self.length, room):  # the match reaches the end: the text may be going round
                    draft.append(draft[len(draft) - period])
                self.waiting = len(draft)
                return draft
        return []

    def learn(self, token_ids: Sequence[int]) -> None:
        """Remember what followed each run of tokens; what follows the last ones is not known yet."""
        for end in range(max(self.seen, 1), len(token_ids)):
            for size in range(1, min(self.longest_match, end) + 1):
                self.places[tuple(token_ids[end - size : end])] = end
        self.seen = len(token_ids)

    def judge(self, accepted: int, length: int) -> None:
        """Learn how many of the last draft's tokens were right, in a text that has `length` now."""
        drafted, self.waiting = self.waiting, 0
        if not drafted:
            return
        self.drafted += drafted
        self.accepted += accepted
        self.gain = MEMORY * self.gain + (1 - MEMORY) * (accepted + 1) / (1 + COST_PER_TOKEN * drafted)
        self.length = min(2 * self.length, self.most) if accepted == drafted else min(max(2, accepted + 1), self.most)
        if self.gain < 1:
            self.paused_until, self.gain = length + self.pause, 1.0
            self.pause = min(2 * self.pause, LONGEST_PAUSE)
        elif accepted == drafted:
            self.pause = FIRST_PAUSE
