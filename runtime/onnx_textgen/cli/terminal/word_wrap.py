"""Breaks a growing text between words, where a terminal would break it within them.

Text appears as soon as it comes. A word that is still being written and reaches the end of its row is erased there and moves to the
next row; only a word that is longer than a row is broken. Nothing of a text is held back, so nothing is lost when a program ends.
"""

from __future__ import annotations

import re
import sys
import unicodedata

TAB = 8
CLOSING = frozenset("、。，．！？：；）」』】〉》,.!?:;)]")  # noqa: RUF001 - the marks of East Asian texts are meant
"""Marks that begin no row, though one may end after the ideograph before them."""
WORD = re.compile(
    r"\s*(?:(?<=: )(?:onnx-textgen|pip|python) [^;,]*|\d[\d.,]* (?:tokens?|tok/s|ms|s|[kMGT]i?B)\b\S*|\S+|$)",
)
"""A word of a message, with the blanks before it; a command is one, so that it can be copied, and so is a number with its unit."""


class WordWrap:
    """The row of a terminal in which text grows: the column of the cursor, and the word before it."""

    def __init__(self) -> None:
        self.column = 0
        self.word, self.word_columns = "", 0
        """What was written of the word at the end of the row, and its width; empty after a blank."""
        self.is_wide = False
        """Whether the last character was an ideograph."""

    def feed(self, text: str, columns: int, style: tuple[str, str] = ("", "")) -> str:
        r"""What to write for the next part of a text, so that it breaks between words.

        columns: the width of the terminal, of which the last one stays free (a full row behaves differently in each terminal);
        0 if it is not known. style: what begins and ends a colour.

        >>> wrap = WordWrap()
        >>> [wrap.feed(part, 10) for part in ("one ", "two th", "ree")]
        ['one ', 'two t\x08\x1b[K\nth', 'ree']
        """
        room = max(columns - 1, 1) if columns else sys.maxsize
        if self.column > room:  # the terminal is narrower now, and has broken the row itself
            self.column, self.word, self.word_columns = self.column % columns, "", 0
        begin, end = style
        written = []
        for character in text:
            if character in "\n \t":
                blank = self.blank(character, room)
                written.append(blank if character == "\n" else begin + blank + end)
                continue
            width = columns_of(character)
            if width and character not in CLOSING:
                if self.is_wide or width == 2:  # a row may end before and after any ideograph
                    self.word, self.word_columns = "", 0
                self.is_wide = width == 2
            if self.column + width > room:
                written.append(self.next_row())
            painted = begin + character + end
            written.append(painted)
            self.word += painted
            self.word_columns += width
            self.column += width
        made = "".join(written)
        return made.replace(end + begin, "") if begin else made

    def blank(self, character: str, room: int) -> str:
        """What to write for a blank, which ends a word; none is written beyond the end of the row."""
        self.word, self.word_columns, self.is_wide = "", 0, False
        if character == "\n":
            self.column = 0
            return "\n"
        count = TAB - self.column % TAB if character == "\t" else 1
        before, self.column = self.column, min(room, self.column + count)
        return " " * (self.column - before) if room < sys.maxsize else character

    def next_row(self) -> str:
        """Go to the next row, with the word that is being written, unless it has filled this one."""
        if self.word_columns == self.column:
            self.word, self.word_columns = "", 0
        self.column = self.word_columns
        return "\b" * self.word_columns + "\033[K" * bool(self.word) + "\n" + self.word


def columns_of(character: str) -> int:
    """Columns of a character in a terminal."""
    if character.isascii():
        return 1
    if unicodedata.east_asian_width(character) in "WF":
        return 2
    # The selector of a picture widens the character before it, in some terminals.
    return int(character == "\ufe0f" or unicodedata.category(character) not in ("Mn", "Me", "Cf"))


def fold(text: str, columns: int) -> str:
    """Break lines that are known as a whole between words; a command in them stays in one piece. `columns`: as for `feed`."""
    return "\n".join(row for line in text.split("\n") for row in rows_of(line, columns)) if columns else text


def rows_of(line: str, columns: int) -> list[str]:
    """The rows of one line."""
    rows = [""]
    for word in WORD.findall(line):
        row = rows[-1] + word
        if rows[-1] and sum(map(columns_of, row)) >= columns:
            rows.append(word.lstrip())
        else:
            rows[-1] = row
    return rows
