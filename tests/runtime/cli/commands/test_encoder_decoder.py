"""The commands with an encoder-decoder: what they do with a source, and one line where they can do nothing."""

import json
import math
from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen.cli import run

FOLDER = str(Path(__file__).parents[3] / "packages" / "numbers")


def test_generate_writes_a_text_for_a_source(capsys):
    assert run(["generate", "4071", "--model", FOLDER, "--temperature", "0"]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == "four thousand and seventy one"
    assert "prompt 5 tokens" in " ".join(err.split())


def test_score_takes_the_source_of_a_text(capsys):
    assert run(["score", "forty two", "--source", "42", "--model", FOLDER]) == 0
    assert "forty" in capsys.readouterr().out
    assert run(["score", "70", "--choice", "seven", "--choice", "seventy", "--model", FOLDER, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["text"] == "seventy"


def test_info_says_what_it_reads_and_what_a_source_takes(capsys):
    assert run(["info", FOLDER]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "reads a source of up to 128 tokens, for which it writes a text" in told
    assert "texts begin with 0" in told
    assert "up to 1.5 kB for each token of a source" in told


def test_list_says_that_it_does_not_chat(capsys):
    assert run(["list", FOLDER]) == 0
    assert "no: encoder-decoder" in capsys.readouterr().out


def test_verify_replays_its_runs_with_their_sources(capsys):
    assert run(["verify", FOLDER]) == 0
    assert capsys.readouterr().out.count("all the same") == 3


def test_inspect_follows_the_text_of_a_source(capsys):
    assert run(["inspect", "42", "--model", FOLDER, "--temperature", "0", "--steps", "9", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [token["piece"] for token in found["source"]] == ["4", "2", "</s>"]
    assert [token["piece"] for token in found["tokens"]] == ["<pad>"]
    assert [step["chosen"]["piece"] for step in found["steps"]] == ["forty", "two", "</s>"]
    score = onnx_textgen.load(FOLDER, device="cpu", threads=1).score("forty two", source="42")
    likely = [step["candidates"][0]["probability"] for step in found["steps"]]
    assert likely == pytest.approx([math.exp(each) for each in score.continuation_logprobs], rel=1e-4)
    assert run(["inspect", "42", "--model", FOLDER, "--temperature", "0"]) == 0
    shown = capsys.readouterr().out
    assert "1 source      '42'" in shown
    assert "the text begins with:" in shown


def test_bench_reads_sources_and_writes_after_them(capsys):
    assert run(["bench", FOLDER, "--rounds", "1", "--new-tokens", "100", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert (measured["prompt_tokens"], measured["new_tokens"]) == (128, 100)
    assert measured["decode_tokens_per_second"] > 0
    assert measured["batch_tokens_per_second"] is None, "texts of sources are not written together"
    assert measured["cache_mib"] * 2**20 == pytest.approx(101 * 768 + 128 * 2 * 768)
    for lengths in (["--prompt-tokens", "129"], ["--new-tokens", "128"]):
        assert run(["bench", FOLDER, *lengths]) == 2
        assert "do not fit in this encoder-decoder, which reads 128 and writes 127" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chat", FOLDER], "reads a source, writes a text for it, and keeps no session"),
        (["score", "forty two", "--model", FOLDER], "is an encoder-decoder: give the source of the text too"),
        (["site", FOLDER, "--out", "site"], "is an encoder-decoder, and a site runs decoders only"),
        (["verify", FOLDER, "--runtime", "openvino"], "is an encoder-decoder, which other runtimes do not run"),
        (["generate", "42", "--model", FOLDER, "--device", "openvino"], "use the device cpu for this model"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments, words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(arguments) != 0
    err = capsys.readouterr().err.strip()
    assert words in " ".join(err.split())
    assert err.count("error:") == 1
