"""`onnx-textgen list`: names that `--model` takes."""

import json
from pathlib import Path

import pytest

from onnx_textgen.cli import run

PACKAGES = Path(__file__).parents[3] / "packages"


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))


def test_what_ships_is_a_table(capsys):
    assert run(["list"]) == 0
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()]
    assert ["name", "precision", "size", "context", "chat", "from"] in rows
    assert ["story", "int8", "9.1", "MB", "512", "no", "embedded"] in rows
    assert (err, max(map(len, out.splitlines())) <= 80) == ("", True)


def test_json_is_one_object(capsys):
    assert run(["list", str(PACKAGES), "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    assert [Path(model["name"]).name for model in models] == ["numbers", "optimum", "optimum-seq2seq", "ort", "standard"]
    assert [model["is_encoder_decoder"] for model in models] == [True, False, True, False, False]
    assert {model["origin"] for model in models} == {"folder"}


def test_what_cannot_be_read_is_a_warning_beside_the_others(tmp_path, capsys):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{", encoding="utf-8")
    assert run(["list", str(tmp_path)]) == 0
    assert f"warning: {tmp_path / 'broken'} cannot be read: " in capsys.readouterr().err
    assert run(["list", str(tmp_path / "broken" / "nothing")]) == 1


def test_an_empty_folder_says_so(tmp_path, capsys):
    assert run(["list", str(tmp_path)]) == 0
    assert capsys.readouterr() == ("", f"no model folders in {tmp_path}\n")
