"""How many words of a text are wrong: those to insert, take out or exchange."""

from __future__ import annotations

import re
from collections.abc import Sequence


def words(text: str) -> list[str]:
    """The words of a text, in small letters."""
    return re.findall(r"[a-z0-9']+", text.lower())


def wrong(wanted: Sequence[str], found: Sequence[str]) -> int:
    """Words to insert, take out or exchange."""
    costs = list(range(len(found) + 1))
    for place, word in enumerate(wanted, start=1):
        before, costs[0] = costs[0], place
        for other, each in enumerate(found, start=1):
            before, costs[other] = costs[other], min(costs[other] + 1, costs[other - 1] + 1, before + (word != each))
    return costs[-1]
