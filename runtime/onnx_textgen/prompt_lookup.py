"""Guesses from the text itself: where its last few tokens have come before, what followed them then (Saxena 2023).

It is transformers' prompt lookup, with the text that was generated looked through too.
"""

from __future__ import annotations

from collections.abc import Sequence

from .cancellation import Watch
from .drafting import Drafter


class PromptLookup(Drafter):
    """Guesses from what came before."""

    def __init__(self, prompt_ids: Sequence[int], most: int, longest_match: int) -> None:
        """`longest_match`: tokens that are looked for at the text's end, at first."""
        super().__init__(prompt_ids, most)
        self.longest_match = longest_match
        self.places: dict[tuple[int, ...], int] = {}
        """Behind each run of tokens that came: where the text went on, the last time."""
        self.seen = 0

    def guess(self, most: int, watch: Watch) -> list[int]:
        """What followed the longest match; a lookup takes next to nothing."""
        self.remember()
        text, end = self.text, len(self.text)
        goes_well = self.right > 4 * self.wrong
        shortest = 1 if goes_well or self.longest_match == 1 else 2  # one token alone has come before too often
        for size in range(min(self.longest_match, end), shortest - 1, -1):
            place = self.places.get(tuple(text[end - size :]))
            if place is not None:
                draft = text[place : place + most]
                period = len(draft)
                while len(draft) < most:  # the match reaches the end: the text may be going round
                    draft.append(draft[len(draft) - period])
                return draft
        return []

    def remember(self) -> None:
        """Remember what followed each run of tokens; what follows the last ones is not known yet."""
        text = self.text
        for end in range(max(self.seen, 1), len(text)):
            for size in range(1, min(self.longest_match, end) + 1):
                self.places[tuple(text[end - size : end])] = end
        self.seen = len(text)
