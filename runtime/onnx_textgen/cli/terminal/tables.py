"""Tables, and lists of names and values, that fit the width of the terminal.

Lines break between words; only a word that is wider than the terminal is split. If a table does not fit even so, each row becomes a
list. No line ends with blanks, so that pipes get none.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from . import screen

if TYPE_CHECKING:
    from rich.console import Console

GAP = 3
"""Blanks between two columns of a table."""
NAME_GAP = 2
"""Blanks between a name and its value; also the indent of a value on the line below its name."""


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts under the names of their columns."""

    columns: tuple[str, ...]
    numbers: frozenset[str] = frozenset()
    """Columns that are aligned right."""
    prose: frozenset[str] = frozenset()
    """Columns whose texts may be wrapped; the texts of other columns stay on one line."""
    title: str = ""
    rows: list[tuple[tuple[str, ...], str]] = dataclasses.field(default_factory=list)
    """The cells and the style of each row."""
    bold: set[tuple[int, str]] = dataclasses.field(default_factory=set)
    """Number of the row and name of the column of each cell that is bold."""

    def add(self, *cells: str, style: str = "", bold: Collection[str] = ()) -> None:
        """Append a row, bold in some columns."""
        self.bold.update((len(self.rows), column) for column in bold)
        self.rows.append((cells, style))

    def widths(self, most: int) -> list[int] | None:
        """A width for each column, at most `most` together with the gaps; None if the words do not fit."""
        texts = [[cells[index] for cells, _ in self.rows] for index in range(len(self.columns))]
        least = [
            max(longest_word(name), *(longest_word(text) if name in self.prose else columns_of(text) for text in each), 0)
            for name, each in zip(self.columns, texts, strict=True)
        ]
        widths = [max(map(columns_of, [name, *each])) for name, each in zip(self.columns, texts, strict=True)]
        room = most - GAP * (len(self.columns) - 1)
        if sum(least) > room:
            return None
        while sum(widths) > room:
            shrinkable = [index for index in range(len(widths)) if widths[index] > least[index]]
            widths[max(shrinkable, key=lambda index: widths[index])] -= 1
        return widths


def show_table(table: Table) -> None:
    """Print a table on stdout."""
    console = screen.make_console()
    if table.title:
        print_line(console, (table.title, "bold"))
    widths = table.widths(console.width)
    if widths is None:
        for number, (cells, _) in enumerate(table.rows):
            if number:
                print_line(console)
            print_lines([(name, cell) for name, cell in zip(table.columns, cells, strict=True) if cell])
        return
    print_row(console, table, widths, table.columns, ["bold"] * len(widths))
    rule = "-" if console.options.ascii_only else "─"
    print_line(console, (rule * (sum(widths) + GAP * (len(widths) - 1)), ""))
    for number, (cells, style) in enumerate(table.rows):
        print_row(console, table, widths, cells, ["bold" if (number, name) in table.bold else style for name in table.columns])


def print_row(console: Console, table: Table, widths: Sequence[int], cells: Sequence[str], styles: Sequence[str]) -> None:
    """Print a row, on as many lines as its longest cell needs; a style for each cell."""
    wrapped = [wrap(console, cell, width) for cell, width in zip(cells, widths, strict=True)]
    for parts in itertools.zip_longest(*wrapped, fillvalue=""):
        aligned = [
            (str.rjust if name in table.numbers else str.ljust)(part, width - columns_of(part) + len(part))
            for name, part, width in zip(table.columns, parts, widths, strict=True)
        ]
        while aligned and not aligned[-1].strip():
            aligned.pop()
        gaps = [" " * GAP] * (len(aligned) - 1)
        texts = [text + gap for text, gap in itertools.zip_longest(aligned, gaps, fillvalue="")]
        texts[-1:] = [text.rstrip() for text in texts[-1:]]
        print_line(console, *zip(texts, styles, strict=False))


def print_lines(lines: Sequence[tuple[str, str]], *, name_width: int | None = None, stderr: bool = False) -> None:
    """Print names and values in two columns; if the words of a value do not fit into its column, it continues at the left.

    `name_width` None: the width of the longest name that leaves half of the line to the values.
    """
    console = screen.make_console(stderr=stderr)
    if name_width is None:
        name_width = max((columns_of(name) for name, _ in lines if columns_of(name) <= console.width // 2), default=0)
    for name, value in lines:
        head = name + " " * (max(0, name_width - columns_of(name)) + NAME_GAP)
        indent, room = columns_of(head), console.width - columns_of(head)
        if columns_of(name) <= name_width and longest_word(value) <= room:
            first, *others = wrap(console, value, room)
        else:
            first, rest = split_at(value, room)
            indent, others = NAME_GAP, wrap(console, rest, console.width - NAME_GAP) if rest else []
        if name or first:
            print_line(console, (head if first else head.rstrip(), "bold"), (first, ""))
        for part in others:
            print_line(console, ((" " * indent + part).rstrip(), ""))


def print_sentence(text: str) -> None:
    """Print a text, broken between words."""
    console = screen.make_console()
    for line in wrap(console, text, console.width):
        print_line(console, (line, ""))


def split_at(text: str, width: int) -> tuple[str, str]:
    """As many words of a text as fit in `width` columns, and the rest.

    >>> split_at("a word and another", 10), split_at("unbreakable", 5)
    (('a word and', 'another'), ('', 'unbreakable'))
    """
    words = text.split(" ")
    ends = itertools.accumulate(columns_of(word) + 1 for word in words)
    count = sum(1 for end in ends if end - 1 <= width)
    return " ".join(words[:count]), " ".join(words[count:])


def wrap(console: Console, text: str, width: int) -> list[str]:
    """Break a text into lines of at most `width` columns, between words, and within a word only if it is longer than that."""
    from rich.text import Text  # noqa: PLC0415  (see `screen.make_console`)

    return [line.plain.rstrip() for line in Text(text).wrap(console, max(1, width), overflow="fold")] or [""]


def longest_word(text: str) -> int:
    """Columns of the longest word of a text."""
    return max(map(columns_of, text.split()), default=0)


def columns_of(text: str) -> int:
    """Columns of a terminal that a text takes."""
    from rich.cells import cell_len  # noqa: PLC0415

    return cell_len(text)


def print_line(console: Console, *parts: tuple[str, str]) -> None:
    """Print one line of texts with their styles, not wrapped; on a terminal without control characters of a model."""
    from rich.text import Text  # noqa: PLC0415

    forbidden = screen.CONTROL_CHARACTERS if console.is_terminal else {}
    console.print(Text.assemble(*((text.translate(forbidden), style) for text, style in parts)), soft_wrap=True)
