"""Finding out that a text runs in a circle, while it is written.

A circle is a sequence of up to `LONGEST` tokens repeated exactly, at least `REPEATS` times and over at least `TOKENS` tokens after
it first came. Lists, tables, refrains and indentation repeat too, but change something or end sooner;
`benchmarks/loop_guard.py` counts how often ordinary text is mistaken.
"""

from __future__ import annotations

import numpy as np

LONGEST = 256
REPEATS = 3
TOKENS = 64
PERIODS = np.arange(1, LONGEST + 1)
NEEDED = np.maximum(TOKENS, REPEATS * PERIODS)
"""For each period, how many tokens in a row must equal the one a period before."""


class LoopGuard:
    """Follows one text; each token costs the same, however long the text is."""

    def __init__(self) -> None:
        self._recent = np.full(LONGEST, -1, dtype=np.int64)
        """The last tokens, the newest first."""
        self._equal = np.zeros(LONGEST, dtype=np.int64)
        """For each period, how many tokens in a row equal the one a period before."""

    def push(self, token_id: int) -> None:
        """Go on with a token."""
        self._equal = np.where(self._recent == token_id, self._equal + 1, 0)
        self._recent[1:] = self._recent[:-1]
        self._recent[0] = token_id

    @property
    def next_in_circle(self) -> int | None:
        """The token that would go on with the circle that the text runs in; None where it runs in none."""
        found = np.flatnonzero(self._equal >= NEEDED)
        return int(self._recent[found[0]]) if found.size else None
