"""How many tokens layers with a sliding window hold, and from which token on: arithmetic alone."""

from __future__ import annotations

import dataclasses
import re

STEP = 512
"""Tokens that are forgotten at a time. Sums of matrix products have the same bits in buffers that begin a multiple of it apart, at
head sizes 64, 128 and 256; so a text is the same as over a cache that holds everything."""
REACH = 256
"""The fewest tokens before the window that stay: as far as a row can always be rewound. More than any draft has."""
PART = 128
"""Kept tokens are a multiple of this, so that the parts of a prompt end where tokens are forgotten."""

NAME = re.compile(r"window_([1-9][0-9]{0,8})")


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """A sliding window, in whose layers a token attends to the last `size` tokens, itself included."""

    size: int

    @property
    def kept(self) -> int:
        """Tokens that stay when earlier ones are forgotten."""
        return -(-self.size // PART) * PART + REACH

    @property
    def capacity(self) -> int:
        """The most tokens in a row's buffer."""
        return self.kept + STEP

    @property
    def copied(self) -> int:
        """The most tokens that are copied at the end of a prompt."""
        return self.size + REACH

    def start(self, length: int) -> int:
        """The first token in the buffer of a row of `length` tokens when a run begins. It depends on nothing else.

        >>> [Window(128).start(length) for length in (0, 895, 896, 1407, 1408)]
        [0, 0, 512, 512, 1024]
        """
        return max(0, (length - self.kept) // STEP * STEP)

    def run_end(self, length: int) -> int:
        """The length at which a run over `length` tokens must end, as the buffer is full there."""
        return self.start(length) + self.capacity

    def suffices(self, first: int, length: int) -> bool:
        """Return whether a row of `length` tokens can be continued if its layers hold only the tokens from `first` to the end."""
        return first == 0 or first <= length - self.size


def length_name(size: int) -> str:
    """Return the name in a graph for the length of keys and values that hold a window of `size` tokens."""
    return f"window_{size}"


def window_of_length(name: int | str) -> Window | None:
    """The window that a length of keys and values is named after, if it is.

    >>> window_of_length("window_512"), window_of_length("cache_length")
    (Window(size=512), None)
    """
    found = NAME.fullmatch(name) if isinstance(name, str) else None
    return Window(int(found[1])) if found else None
