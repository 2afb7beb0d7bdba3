"""Text for a person who decides by reading: marks that could hide or reorder a part of it become escapes."""

from __future__ import annotations

DIRECTION = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Marks that change the order in which text is shown (Unicode's bidirectional algorithm, UAX 9)."""
CONTROLS = tuple(code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n")
ESCAPES = {code: f"\\u{code:04x}" for code in (*CONTROLS, *DIRECTION)}


def visible(text: str) -> str:
    r"""The text with control characters and marks of direction as the escapes of JSON.

    >>> print(visible("\u202egpj.exe"))
    \u202egpj.exe
    """
    return text.translate(ESCAPES)
