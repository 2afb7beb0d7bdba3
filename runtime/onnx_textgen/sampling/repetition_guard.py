"""Detects that a text repeats itself in a loop, while it is generated.

A loop is a sequence of up to `LONGEST` tokens that is repeated exactly, at least `REPEATS` times and over at least `TOKENS` tokens
after its first occurrence. Lists, tables, refrains and indentation repeat too, but with changes, or they end sooner: 7.8
million tokens of ordinary text had three false alarms (version 0.2).
"""

from __future__ import annotations

import numpy as np

LONGEST = 256
REPEATS = 3
TOKENS = 64
PERIODS = np.arange(1, LONGEST + 1)
NEEDED = np.maximum(TOKENS, REPEATS * PERIODS)
"""For each period, the number of consecutive tokens that must equal the token one period earlier."""


class LoopGuard:
    """The detector of one text; each token takes the same time, however long the text is."""

    def __init__(self) -> None:
        self._recent = np.full(LONGEST, -1, dtype=np.int64)
        """The last tokens, newest first."""
        self._equal = np.zeros(LONGEST, dtype=np.int64)
        """For each period, the number of consecutive tokens that equal the token one period earlier."""

    def push(self, token_id: int) -> None:
        """Append a token."""
        self._equal = np.where(self._recent == token_id, self._equal + 1, 0)
        self._recent[1:] = self._recent[:-1]
        self._recent[0] = token_id

    @property
    def next_in_cycle(self) -> int | None:
        """The token that would continue the loop; None if the text is in no loop."""
        found = np.flatnonzero(self._equal >= NEEDED)
        return int(self._recent[found[0]]) if found.size else None
