"""Numbers of bytes for people: the same everywhere, in decimal units."""

from __future__ import annotations


def in_words(count: float) -> str:
    """A number of bytes; a MB is 1,000,000 of them.

    >>> in_words(827), in_words(10_240_000)
    ('827 bytes', '10.2 MB')
    """
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
