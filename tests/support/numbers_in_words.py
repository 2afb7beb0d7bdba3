"""Numbers in English words, which the package `tests/packages/numbers` was trained to write."""

from __future__ import annotations

ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen"),
    *("fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def in_words(number: int) -> list[str]:
    """A number below a million in English words.

    >>> " ".join(in_words(4071))
    'four thousand and seventy one'
    """
    if number < 20:
        return [ONES[number]]
    if number < 100:
        return [TENS[number // 10 - 2], *([ONES[number % 10]] if number % 10 else [])]
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    rest = in_words(number % size) if number % size else []
    return [*in_words(number // size), name, *(["and"] if rest and number % size < 100 else []), *rest]
