"""Guesses from the text itself: where its last few tokens have come before, what followed them then (Saxena 2023).

It is transformers' prompt lookup, with the text that was generated looked through too. Beyond it, a guess that was right up to some
token is taken for a copy that is edited there, as in corrected text and code: the next guess goes on where the copy does if a token
was exchanged, left out or put in. A lookup would have to wait for two tokens more to find the place again.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..cancellation import Watch
from .drafter import COST_PER_TOKEN, Drafter

SHIFTS = (0, 1, -1, 2, -2, 3, -3, 4, -4)
"""How many tokens an edit may have left out or put in, in the order they are tried."""


class PromptLookup(Drafter):
    """Guesses from what came before."""

    def __init__(self, prompt_ids: Sequence[int], most: int, longest_match: int, *, run_cost: float = COST_PER_TOKEN) -> None:
        """`longest_match`: tokens that are looked for at the text's end, at first."""
        super().__init__(prompt_ids, most, run_cost=run_cost)
        self.longest_match = longest_match
        self.places: dict[tuple[int, ...], int] = {}
        """Behind each run of tokens that came: where the text went on, the last time."""
        self.seen = 0
        self.copied: int | None = None
        """The place that the last guess was copied from."""
        self.length_then = 0
        """Of the text, when that guess was made."""
        self.was_sure = False
        """Whether two tokens or more spoke for that place; one alone has come before too often."""

    def guess(self, most: int, watch: Watch) -> list[int]:
        """What followed the longest match, or what follows behind an edit; a lookup takes next to nothing."""
        self.remember()
        found = self.match(self.longest_match, 2)
        place = found if found is not None else self.behind_edit()
        goes_well = self.right > 4 * self.wrong
        if place is None and (goes_well or self.longest_match == 1):
            place = self.match(1, 1)
        self.copied, self.length_then, self.was_sure = place, len(self.text), found is not None
        if place is None:
            return []
        draft = self.text[place : place + most]
        period = len(draft)
        while len(draft) < most:  # the match reaches the end: the text may be going round
            draft.append(draft[len(draft) - period])
        return draft

    def match(self, longest: int, shortest: int) -> int | None:
        """What came behind the last tokens the last time, for as many of them as can be."""
        end = len(self.text)
        sizes = range(min(longest, end), shortest - 1, -1)
        return next((place for size in sizes if (place := self.places.get(tuple(self.text[end - size :]))) is not None), None)

    def behind_edit(self) -> int | None:
        """Where the copy goes on: behind the last token, if that is near, else as if it stood in the place of another one."""
        if self.copied is None:
            return None
        text, end = self.text, len(self.text)
        passed = end - self.length_then
        place = self.copied + passed
        for near in (place + shift for shift in SHIFTS if 0 < place + shift < end):
            if text[near - 1] == text[-1]:
                return near
        was_wrong_at_once = passed == 1 and not self.was_sure
        return None if was_wrong_at_once or place >= end else place

    def remember(self) -> None:
        """Remember what followed each run of tokens; what follows the last ones is not known yet."""
        text = self.text
        for end in range(max(self.seen, 1), len(text)):
            for size in range(1, min(self.longest_match, end) + 1):
                self.places[tuple(text[end - size : end])] = end
        self.seen = len(text)
