"""The common prefix of two texts."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(first: Sequence[object], second: Sequence[object]) -> int:
    """Length of the common prefix of two sequences, by bisection: slices compare faster than single items.

    >>> common_prefix([1, 2, 3], (1, 2, 4, 5))
    2
    """
    one, other = list(first), list(second)
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high - 1:  # the first `low` are equal, the first `high` are not
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
