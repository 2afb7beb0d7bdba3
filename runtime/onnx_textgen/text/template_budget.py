"""The steps that rendering a chat template may take; what a value costs is counted in its characters and elements."""

from __future__ import annotations

import time
from collections.abc import Sized
from typing import Any

from jinja2.exceptions import SecurityError

MAX_SECONDS = 5.0
"""A backstop for large conversations and for what the steps do not foresee; a real template takes milliseconds."""
SIZED: tuple[type[Sized], ...] = (str, list, dict, tuple, range, type({}.keys()), type({}.values()), type({}.items()))
"""What has a length in a template; concrete types, because asking for a `Collection` takes ten times as long."""


class Budget:
    """The steps a rendering has left."""

    __slots__ = ("_deadline", "_steps")

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._deadline = time.monotonic() + MAX_SECONDS

    def spend(self, steps: int) -> None:
        """Take `steps` off; raises `SecurityError` when none are left."""
        self._steps -= steps
        if self._steps < 0 or time.monotonic() > self._deadline:
            raise SecurityError("it takes more steps than any chat template needs")

    def weigh(self, value: object) -> int:
        """Count characters and elements in `value`, all levels down: the time and room that writing it out takes.

        Spends as it goes, because a value that holds itself twice on each of forty levels is small until it is written.
        """
        total = 0
        waiting: list[Any] = [value]
        while waiting:
            item = waiting.pop()
            size = shallow_size(item)
            total += 1 + size
            self.spend(1 + size)
            if isinstance(item, dict):
                waiting.extend(item)
                waiting.extend(item.values())
            elif size and not isinstance(item, str | range):
                waiting.extend(item)
        return total


def shallow_size(value: object) -> int:
    """Count the characters of a text or the elements of a collection; 0 for all else."""
    return len(value) if isinstance(value, SIZED) else 0
