"""What the penalties remember of a text: its ids in order, each id once, how often each came, and where a sequence breaks.

Brought up to date token by token, so that a step costs the same however long the text is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

HistoryIds = npt.NDArray[np.int64]


class Growing:
    """An array of ids that grows at its end."""

    __slots__ = ("_room", "_size")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._room = np.array(list(ids), dtype=np.int64)
        self._size = self._room.size

    @property
    def array(self) -> HistoryIds:
        """All of it, as a view."""
        return self._room[: self._size]

    def last(self, count: int) -> HistoryIds:
        """The last `count`, or all of them for a negative number."""
        return self._room[max(0, self._size - count) : self._size] if count >= 0 else self.array

    def append(self, token_id: int) -> None:
        """Add one."""
        if self._size == self._room.size:
            self._room = np.resize(self._room, 64 + 2 * self._size)
        self._room[self._size] = token_id
        self._size += 1


class History:
    """The ids of a prompt and of the text after it."""

    def __init__(self, prompt_ids: Sequence[int], vocab_size: int) -> None:
        self.prompt_ids, self.vocab_size = prompt_ids, vocab_size
        self.begin()

    def begin(self) -> None:
        """Forget the text after the prompt."""
        self.new_ids: list[int] = []
        self.ids = Growing(self.prompt_ids)
        """Prompt and text, in order."""
        self.unique = Growing(np.unique(self.ids.array))
        """Each id of prompt and text once."""
        self.new_unique = Growing()
        """Each id of the text once."""
        self.counts = np.zeros(self.vocab_size, np.float32)
        """How often the text has each id of the vocabulary."""
        self._is_known = np.zeros(self.vocab_size, dtype=bool)
        self._is_known[self.ids.array] = True

    def follow(self, token_ids: Sequence[int]) -> None:
        """Bring it up to date with a text's ids; a text that does not go on from the one before begins anew."""
        held = len(self.new_ids)
        if list(token_ids[:held]) != self.new_ids:
            self.begin()
            held = 0
        for token_id in token_ids[held:]:
            self.append(int(token_id))

    def append(self, token_id: int) -> None:
        """Go on with one id."""
        self.new_ids.append(token_id)
        self.ids.append(token_id)
        if not self._is_known[token_id]:
            self._is_known[token_id] = True
            self.unique.append(token_id)
        if not self.counts[token_id]:
            self.new_unique.append(token_id)
        self.counts[token_id] += 1


class Breakers:
    """Which ids end a sequence: those whose text holds one of some strings."""

    def __init__(self, texts: Sequence[str], piece: Callable[[int], str] | None) -> None:
        self.texts, self.piece = texts, piece
        self._known: dict[int, bool] = {}

    def breaks(self, token_id: int) -> bool:
        """Whether an id ends a sequence."""
        if self.piece is None:
            return False
        if token_id not in self._known:
            self._known[token_id] = any(text in self.piece(token_id) for text in self.texts)
        return self._known[token_id]

    def since_last(self, ids: HistoryIds, most: int = 256) -> int:
        """How many ids came after the last one that ends a sequence; `most` where there are more."""
        for count, token_id in enumerate(ids[: -most - 1 : -1].tolist()):
            if self.breaks(token_id):
                return count
        return min(len(ids), most)
