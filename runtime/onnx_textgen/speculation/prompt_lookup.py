"""Drafts from the text itself: if its last few tokens occurred before, the tokens that followed them then (Saxena 2023).

This is transformers' prompt lookup, which here searches the generated text too. In addition, a draft that was right up to some
token is treated as a copy that is edited there, as in corrected text and code: the next draft continues the copy as if a token had
been replaced, deleted or inserted. A lookup alone would need two more tokens to find the place again.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..cancellation import CancelScope
from .drafter import COST_PER_TOKEN, Drafter

SHIFTS = (0, 1, -1, 2, -2, 3, -3, 4, -4)
"""Tokens that an edit may have deleted or inserted, in the order in which they are tried."""


class PromptLookup(Drafter):
    """Drafts from earlier text."""

    def __init__(self, prompt_ids: Sequence[int], most: int, longest_match: int, *, run_cost: float = COST_PER_TOKEN) -> None:
        """`longest_match`: length of the first suffix of the text that is looked up; shorter ones follow."""
        super().__init__(prompt_ids, most, run_cost=run_cost)
        self.longest_match = longest_match
        self.places: dict[tuple[int, ...], int] = {}
        """For each sequence of tokens in the text: the position after its last occurrence."""
        self.seen = 0
        self.copied: int | None = None
        """Position that the last draft was copied from."""
        self.length_then = 0
        """Length of the text at that draft."""
        self.was_sure = False
        """Whether at least two tokens matched there; a single token occurs too often to be sure."""

    def guess(self, most: int, scope: CancelScope) -> list[int]:
        """The tokens after the longest match, or after an edit of the copy; a lookup takes almost no time."""
        self.remember()
        found = self.match(self.longest_match, 2)
        place = found if found is not None else self.after_edit()
        goes_well = self.right > 4 * self.wrong
        if place is None and (goes_well or self.longest_match == 1):
            place = self.match(1, 1)
        self.copied, self.length_then, self.was_sure = place, len(self.text), found is not None
        if place is None:
            return []
        draft = self.text[place : place + most]
        period = len(draft)
        while len(draft) < most:  # the match reaches the end: the text may be in a loop
            draft.append(draft[len(draft) - period])
        return draft

    def match(self, longest: int, shortest: int) -> int | None:
        """Position after the last earlier occurrence of the longest suffix of the text that has one."""
        end = len(self.text)
        sizes = range(min(longest, end), shortest - 1, -1)
        return next((place for size in sizes if (place := self.places.get(tuple(self.text[end - size :]))) is not None), None)

    def after_edit(self) -> int | None:
        """Where the copy continues: after the last token if that is near, else as if the last token replaced another one."""
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
        """Record the position after each sequence of tokens, except the last ones, which nothing follows yet."""
        text = self.text
        for end in range(max(self.seen, 1), len(text)):
            for size in range(1, min(self.longest_match, end) + 1):
                self.places[tuple(text[end - size : end])] = end
        self.seen = len(text)
