"""History of a text for the penalties: its ids in order, each id once, the count of each id, and where a sequence breaks.

An update appends the new ids and removes those that the text no longer has, for example when beams alternate. To find them, all ids
are compared once: a few hundredths of a millisecond for 4,000 ids. The penalties read each id too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ..text.prefixes import common_prefix

HistoryIds = npt.NDArray[np.int64]


class GrowableArray:
    """An array of integers that grows and shrinks at its end."""

    __slots__ = ("_room", "size")

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._room = np.array(list(numbers), dtype=np.int64)
        self.size = self._room.size

    @property
    def array(self) -> HistoryIds:
        """All numbers, as a view."""
        return self._room[: self.size]

    def last(self, count: int) -> HistoryIds:
        """A view of the last `count` numbers, or of all for a negative `count`."""
        return self._room[max(0, self.size - count) : self.size] if count >= 0 else self.array

    def append(self, number: int) -> None:
        """Append a number."""
        if self.size == self._room.size:
            self._room = np.resize(self._room, 64 + 2 * self.size)
        self._room[self.size] = number
        self.size += 1

    def pop(self) -> None:
        """Remove the last number."""
        self.size -= 1


class History:
    """The ids of a prompt and of the text after it."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self.ids = GrowableArray(prompt_ids)
        """Prompt and text, in order."""
        self.prompt = set(prompt_ids)
        self.unique = GrowableArray(sorted(self.prompt))
        """Each id of prompt and text once."""
        self.new_ids: list[int] = []
        self.new_unique = GrowableArray()
        """Each id of the text once."""
        self.counts = GrowableArray()
        """Count of each id of `new_unique` in the text."""
        self._places: dict[int, int] = {}
        """Index of each id in `new_unique`."""

    def sync(self, token_ids: Sequence[int]) -> None:
        """Make the history equal to a text's ids."""
        kept = common_prefix(self.new_ids, token_ids)
        while len(self.new_ids) > kept:
            self.pop()
        for token_id in token_ids[kept:]:
            self.append(int(token_id))

    def append(self, token_id: int) -> None:
        """Append an id."""
        self.new_ids.append(token_id)
        self.ids.append(token_id)
        place = self._places.setdefault(token_id, self.new_unique.size)
        if place == self.new_unique.size:
            self.new_unique.append(token_id)
            self.counts.append(0)
            if token_id not in self.prompt:
                self.unique.append(token_id)
        self.counts.array[place] += 1

    def pop(self) -> None:
        """Remove the last id; if it occurred once, it is the last in each list."""
        token_id = self.new_ids.pop()
        self.ids.pop()
        place = self._places[token_id]
        self.counts.array[place] -= 1
        if not self.counts.array[place]:
            del self._places[token_id]
            self.new_unique.pop()
            self.counts.pop()
            if token_id not in self.prompt:
                self.unique.pop()


class SequenceBreakers:
    """Which ids end a sequence for DRY: those whose text contains one of the given strings."""

    def __init__(self, texts: Sequence[str], piece: Callable[[int], str] | None) -> None:
        self.texts, self.piece = texts, piece
        self._known: dict[int, bool] = {}

    def breaks(self, token_id: int) -> bool:
        """Return whether an id ends a sequence."""
        if self.piece is None:
            return False
        if token_id not in self._known:
            self._known[token_id] = any(text in self.piece(token_id) for text in self.texts)
        return self._known[token_id]

    def since_last(self, ids: HistoryIds, most: int = 256) -> int:
        """Number of ids after the last one that ends a sequence, at most `most`."""
        for count, token_id in enumerate(ids[: -most - 1 : -1].tolist()):
            if self.breaks(token_id):
                return count
        return min(len(ids), most)
