"""Tables and lists: as wide as the terminal allows, broken between words, and without a blank that nobody sees."""

import contextlib
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.cli.terminal.tables import Table, print_lines, show_table

COMMANDS = [
    ["list"],
    ["info", "story"],
    ["info", "tiny-transformer"],
    ["score", "The dog wagged its tail."],
    ["score", "The dog wagged its tail.", "--logprobs", "3"],
    ["score", "The dog wagged its", "--choice", " tail", "--choice", " nose"],
    ["inspect", "Once upon a time", "--steps", "1", "--seed", "7"],
]


@pytest.fixture(autouse=True)
def one_model(monkeypatch, tmp_path, story):
    monkeypatch.setattr(onnx_textgen, "load", lambda package, **options: story)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))


def words(text: str) -> set[str]:
    """What a reader sees; lines and bars are no words."""
    return set(re.sub("[─█]", " ", text).split())


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_forty_columns_have_the_words_of_a_wide_terminal_and_break_none(command, capsys, monkeypatch):
    shown = {}
    for columns in (400, 40):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert run(command) == 0
        shown[columns] = capsys.readouterr().out
    wide, narrow = (words(shown[columns]) for columns in (400, 40))
    too_long = {word for word in wide if cell_len(word) > 38}  # the path of a folder, in whatever place
    assert wide - too_long <= narrow
    assert {word for word in narrow - wide if not any(word in path for path in too_long)} == set()
    assert max(map(cell_len, shown[40].splitlines())) <= 40


@pytest.mark.parametrize("command", [*COMMANDS, ["doctor"]], ids=" ".join)
@pytest.mark.parametrize("columns", [40, 80])
def test_a_pipe_gets_no_blank_at_the_end_of_a_line_and_no_blank_line_first(command, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    run(command)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip()
    assert [line for line in lines if line != line.rstrip()] == []


CELLS = st.text(st.sampled_from("abc 大é[]:"), max_size=30)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=5), st.integers(12, 60))
def test_any_table_keeps_to_the_width_and_shows_every_character(rows, columns):
    table = Table(("one", "the second", "n"), numbers=frozenset({"n"}), prose=frozenset({"the second"}))
    for row in rows:
        table.add(*row)
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setenv("COLUMNS", str(columns))
        show_table(table)
    assert max(map(cell_len, out.getvalue().splitlines()), default=0) <= columns
    wanted, shown = ("".join(sorted(re.sub(r"\s", "", text))) for text in ("".join(map("".join, rows)), out.getvalue()))
    assert all(shown.count(character) >= wanted.count(character) for character in wanted)


def test_values_stand_below_each_other_where_their_words_fit_and_go_on_at_the_left_elsewhere(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "24")
    print_lines([("name", "a b"), ("precision", "int8, 64"), ("a rather long name", "some value"), ("in", "a path/of/some/length")])
    assert capsys.readouterr().out.splitlines() == [
        "name       a b",
        "precision  int8, 64",
        "a rather long name  some",
        "  value",
        "in         a",
        "  path/of/some/length",
    ]
