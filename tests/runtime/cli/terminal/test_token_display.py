"""`generate --show-tokens`: the text in colours on a terminal, a line for each token elsewhere."""

import json
import math
import re

import pytest

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.cli.terminal import token_display
from onnx_textgen.results import Alternative, Chunk
from support.cli_model import CharacterModel

LIKELY, UNLIKELY = math.log(0.9), math.log(0.001)
CHUNKS = [
    Chunk("a", (97,), (LIKELY,)),
    Chunk("", (200,), (UNLIKELY,)),  # the first half of a character
    Chunk("é\n", (201, 10), (LIKELY, LIKELY), finish_reason="length"),
]


@pytest.fixture
def model(monkeypatch):
    model = CharacterModel()
    model.speak = lambda prompt_tokens: iter(CHUNKS)
    monkeypatch.setattr(onnx_textgen, "load", lambda package, **options: model)
    return model


@pytest.fixture
def colours(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")


def test_without_colours_each_token_is_a_line(model, capsys):
    assert run(["generate", "Hello", "--show-tokens"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["90.00%", "97", "'a'"], ["0.10%", "200", "'È'"], ["90.00%", "201", "'É'"], ["90.00%", "10", r"'\n'"]]
    assert model.calls[0][1] == {"logprobs": 0}


def test_with_colours_the_text_stays_as_it_is_and_its_least_likely_token_colours_a_character(model, capsys, colours):
    assert run(["generate", "Hello", "--show-tokens"]) == 0
    out, err = capsys.readouterr()
    assert re.sub(r"\x1b\[[\d;]*m", "", out) == "aé\n\n"
    assert out.startswith("\x1b[32ma\x1b[0m\x1b[7;31mé")
    assert "50% or more" in err


def test_a_package_without_a_tokenizer_shows_ids_whatever_the_colours(model, capsys, colours):
    model.has_tokenizer = False
    assert run(["generate", "--token-ids", "5", "--show-tokens"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()][:2] == [["90.00%", "97"], ["0.10%", "200"]]


def test_no_color_wins(model, capsys, colours, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(["generate", "Hello", "--show-tokens"]) == 0
    assert "\x1b" not in "".join(capsys.readouterr())


def test_json_has_the_log_probabilities(model, capsys):
    assert run(["generate", "Hello", "--show-tokens", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["logprobs"] == [LIKELY, UNLIKELY, LIKELY, LIKELY]


@pytest.mark.parametrize("option", [["--show-tokens"], ["--logprobs", "3"]])
def test_several_texts_are_refused(model, capsys, option):
    assert run(["generate", "Hello", *option, "--num-return-sequences", "2"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {option[0]} shows only a single text")


@pytest.mark.parametrize("colours_wanted", [[], ["--show-tokens"]])
def test_log_probabilities_that_were_asked_for_are_shown_with_the_likeliest_tokens(model, capsys, colours, colours_wanted):
    weighed = (Alternative(97, "a", LIKELY), Alternative(98, " b", UNLIKELY))
    chunks = [Chunk("a", (97,), (LIKELY,), (weighed,)), Chunk("c", (99,), (UNLIKELY,), (weighed,), finish_reason="length")]
    model.speak = lambda prompt_tokens: iter(chunks)
    assert run(["generate", "Hello", "--logprobs", "2", *colours_wanted]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["-0.1054", "90.00%", "97", "'a'", "'a'", "90.00%,", "'", "b'", "0.10%"],
        ["-6.9078", "0.10%", "99", "'c'", "'a'", "90.00%,", "'", "b'", "0.10%"],
    ]
    assert model.calls[0][1] == {"logprobs": 2}


def test_log_probabilities_alone_are_a_line_each(model, capsys):
    assert run(["generate", "Hello", "--logprobs", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines][:2] == [["-0.1054", "90.00%", "97", "'a'"], ["-6.9078", "0.10%", "200", "'È'"]]
    assert [line for line in lines if line != line.rstrip()] == []


def test_long_text_in_colours_is_neither_wrapped_nor_cut(colours, capsys):
    show = token_display.make_coloured_text()
    for _ in range(50):
        show(Chunk("  word", (5,), (LIKELY,)))
    assert re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out) == "  word" * 50


def test_the_real_model_streams_them(story, monkeypatch, capsys):
    monkeypatch.setattr(onnx_textgen, "load", lambda package, **options: story)
    assert run(["generate", "The dog", "--show-tokens", "--temperature", "0", "-n", "5"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
