"""`onnx-textgen score`: one text as a table, a file of documents as a whole."""

import json
import math

import pytest

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.cli.analysis.score import split_documents
from support.cli_model import CharacterModel


@pytest.fixture(autouse=True)
def model(monkeypatch):
    model = CharacterModel()
    monkeypatch.setattr(onnx_textgen, "load", lambda package, **options: model)
    return model


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "documents.txt"
    file.write_text("One.\n---\nThe second is longer.\n\nMuch.\n---\n\n---\nÄ.\n---\n", encoding="utf-8")
    return file


def test_one_text_is_a_table_of_its_tokens(capsys):
    assert run(["score", "ab"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["0", "1", "'<s>'", "-", "-"] in lines
    assert ["2", "98", "'b'", "-1.0000", "36.79%"] in lines
    assert f"perplexity {math.e:.2f}".split() == lines[-1][:2]


def test_one_text_as_json_has_what_the_library_returns(capsys):
    assert run(["score", "ab", "--json"]) == 0
    score = json.loads(capsys.readouterr().out)
    assert score["token_ids"] == [1, 97, 98]
    assert score["logprobs"] == [-1, -1]
    assert score["bits_per_byte"] == pytest.approx(1 / math.log(2))


def test_documents_are_scored_alone_and_added_up(file, capsys):
    assert run(["score", "--file", str(file), "--separator", "---", "--json"]) == 0
    total = json.loads(capsys.readouterr().out)
    characters = len("One." + "The second is longer.\n\nMuch." + "Ä.")
    assert (total["documents"], total["tokens"], total["bytes"]) == (3, characters, characters + 1)
    assert total["bits_per_byte"] == pytest.approx(characters / math.log(2) / (characters + 1))
    assert total["perplexity"] == pytest.approx(math.e)


def test_long_documents_are_left_out_before_the_first_few_are_taken(file, capsys):
    assert run(["score", "--file", str(file), "--separator", "---", "--max-bytes", "4", "--limit", "2", "--json"]) == 0
    total = json.loads(capsys.readouterr().out)
    assert (total["documents"], total["bytes"]) == (2, 7)


def test_without_a_separator_the_file_is_one_document(file, capsys):
    assert run(["score", "--file", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 1


@pytest.mark.parametrize(
    ("content", "documents"),
    [("", []), ("---", []), ("---\n---\n", []), ("a", ["a"]), ("a\n---\n\nb\n", ["a", "b"]), ("a---\n ---\nb", ["a---\n ---\nb"])],
)
def test_only_whole_lines_separate_documents(content, documents):
    assert list(split_documents(content, "---")) == documents


def test_a_file_is_one_line_of_a_table(file, capsys):
    assert run(["score", "--file", str(file), "--separator", "---"]) == 0
    out, err = capsys.readouterr()
    assert "bits_per_byte" in out
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["score", "a", "--separator", "---"], 2, "--file"),
        (["score", "a", "--file", "FILE"], 2, "exclude each other"),
        (["score", "--file", "nowhere.txt"], 1, "cannot read nowhere.txt"),
        (["score", "--file", "FILE", "--max-bytes", "1"], 1, "no document"),
        (["score", "--file", "FILE", "--limit", "0"], 2, "--limit"),
        (["score", "a", "--choice", "b", "--logprobs", "3"], 2, "--choice ranks continuations"),
        (["score", "a", "--choice", "b", "--stride", "3"], 2, "--choice ranks continuations"),
        (["score", "a", "--choice", "b", "--continuation", "c"], 2, "--choice ranks continuations"),
    ],
)
def test_what_cannot_be_scored_is_said_in_one_line(file, capsys, arguments, code, words):
    assert run([str(file) if argument == "FILE" else argument for argument in arguments]) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), words in err) == ("", 1, True)
