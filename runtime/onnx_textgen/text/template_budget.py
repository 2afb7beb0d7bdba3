"""The steps that the rendering of a chat template may take: a value costs as many as it has characters and elements."""

from __future__ import annotations

import time
from collections.abc import Sized
from typing import Any

from jinja2.exceptions import SecurityError

MAX_SECONDS = 5.0
"""A further limit, for large conversations and for costs that the steps miss; a real template takes milliseconds.

Of the thread's own time: a busy machine, or one that was asleep, stops no template.
"""
SIZED: tuple[type[Sized], ...] = (str, list, dict, tuple, range, type({}.keys()), type({}.values()), type({}.items()))
"""The types of a template's values that have a length; concrete ones, as a check for `Collection` takes ten times as long."""


class Budget:
    """The steps that a rendering has left."""

    __slots__ = ("_deadline", "_steps")

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._deadline = time.thread_time() + MAX_SECONDS

    def spend(self, steps: int) -> None:
        """Subtract `steps`; raises `SecurityError` when none are left, or after `MAX_SECONDS`."""
        self._steps -= steps
        if self._steps < 0 or time.thread_time() > self._deadline:
            raise SecurityError("it takes more steps than any chat template needs")

    def spend_deep_size(self, value: object) -> int:
        """Count, spend and return the characters and elements of `value` on all levels: the time and memory to write it out.

        They are spent while they are counted: a value of forty levels, each with the next one twice, is small until it is written.
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
    """The number of characters of a text or elements of a collection; 0 for other values."""
    return len(value) if isinstance(value, SIZED) else 0
