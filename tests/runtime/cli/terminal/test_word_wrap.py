"""Text that grows on a terminal breaks between words, at every width and however it is cut into parts."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from rich.cells import cell_len

from onnx_textgen.cli.terminal.word_wrap import WordWrap, fold

pytest.importorskip("termios", reason="needs a pseudo-terminal")
from support.terminal import broken, screen_of  # Windows has none

WORDS = [
    "a",
    "Paris,",
    "the",
    "dog",
    "don't",
    "語",
    "日本語。",
    "naïve",
    "e\u0301te\u0301",
    "🙂",
    "(1)",
    "x" * 35,
    "https://a.example/" + "y" * 90,
]
BLANKS = [" ", " ", " ", "  ", "\n", "\n\n", "\n    ", ""]


def parts_of(text: str, chance: random.Random) -> list[str]:
    """A text as a model writes it: in parts of one to six characters."""
    ends = [0]
    while ends[-1] < len(text):
        ends.append(ends[-1] + chance.randint(1, 6))
    return [text[begin:end] for begin, end in itertools.pairwise(ends)]


def shown(parts: list[str], columns: int, style: tuple[str, str] = ("", "")) -> list[str]:
    """The rows of a terminal after these parts."""
    wrap = WordWrap()
    return screen_of("".join(wrap.feed(part, columns, style) for part in parts).replace("\n", "\r\n"), columns)


@pytest.mark.parametrize("columns", [20, 21, 33, 40, 60, 80, 200])
def test_rows_end_between_words_and_hold_the_whole_text(columns: int) -> None:
    chance = random.Random(columns)
    for _ in range(60):
        text = "".join(chance.choice(WORDS) + chance.choice(BLANKS) for _ in range(40)).rstrip()
        rows = shown(parts_of(text, chance), columns)
        expected = [row for line in text.split("\n") for row in broken(line, columns - 1)]
        assert rows == expected
        assert max(map(cell_len, rows)) < columns
        with_tabs = text.replace("  ", "\t")
        rows = shown(parts_of(with_tabs, chance), columns, ("\x1b[32m", "\x1b[0m"))
        assert "".join(rows).replace(" ", "") == re.sub(r"\s", "", with_tabs)
        assert rows == shown([with_tabs], columns), "the parts do not matter"


def test_a_terminal_may_change_its_width() -> None:
    wrap = WordWrap()
    written = wrap.feed("x" * 50 + " ", 80) + wrap.feed("one two thr", 20) + wrap.feed("ee four", 80)
    assert screen_of(written.replace("\n", "\r\n"), 20) == ["x" * 20, "x" * 20, "x" * 10 + " one two", "three four"]
    assert [WordWrap().feed("a b\tc\n", 0), fold("a b", 0)] == ["a b\tc\n", "a b"], "a width that is not known breaks nothing"


def test_a_line_is_broken_between_words_and_a_command_stays_whole() -> None:
    line = "error: there is no model here that has this name; fetch it with: onnx-textgen pull smollm2-360m, or give a folder"
    assert fold(line, 40).split("\n") == [
        "error: there is no model here that has",
        "this name; fetch it with:",
        "onnx-textgen pull smollm2-360m, or give",
        "a folder",
    ]
    assert fold("  name  a long text\n  other", 12) == "  name  a\nlong text\n  other"
    assert fold("run it? [y]es: ", 80) == "run it? [y]es: "


def test_a_number_keeps_its_unit() -> None:
    line = "prompt 42 tokens (12 kept) 310 tok/s | text 1,128 tokens 61.2 tok/s | first token 140 ms | seed 7 | stop: length"
    for columns in range(20, 100):
        rows = fold(line, columns).split("\n")
        assert " ".join(rows) == line
        assert max(map(len, rows)) < columns
        assert not [row for row in rows if re.match(r"(tokens|tok/s|ms)\b", row)]
