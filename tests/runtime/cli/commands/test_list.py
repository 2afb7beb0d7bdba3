"""`onnx-textgen list`: names that `--model` takes."""

import json
import shutil
from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.cli.terminal.certificate import precision_in_words
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import manifest_digest, precision_name
from onnx_textgen.package.reading import read_manifest

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


@pytest.mark.parametrize(
    ("precision", "quantization", "name"),
    [
        ("int8", {"bits": 8, "as_stored": {"Q8_0": 1, "4 bits in blocks of 32 with offsets": 2}}, "4 and 8 bits, as stored"),
        ("int8", {"bits": 8, "as_stored": {"int4 in blocks of 128 with zero points": 1, "Q4_0": 2}}, "4 bits, as stored"),
        ("int8", {"bits": 8, "block_size": 32, "as_stored": {"Q8_0": 1}}, "int8"),
        ("int4", {"bits": 4, "block_size": 32, "head_bits": 8}, "int4"),
        ("int8", {"as_stored": {"": 1}}, "int8"),
        ("fp32", {}, "fp32"),
    ],
)
def test_a_package_with_the_numbers_of_its_source_says_so(precision, quantization, name):
    assert precision_name(precision, quantization) == name
    assert precision_in_words(precision, quantization).startswith(name)


def test_a_size_and_a_precision_are_the_same_everywhere(tmp_path, monkeypatch, capsys):
    place = tmp_path / "mixed"
    shutil.copytree(find_package("story"), place)
    data = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
    data["quantization"] = {"bits": 8, "accuracy_level": 4, "as_stored": {"Q8_0": 3_000_000, "Q4_0": 5_000_000}}
    data["sha256"] = manifest_digest(data)
    (place / "manifest.json").write_text(json.dumps(data), encoding="utf-8")
    manifest = read_manifest(place)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["list", "."]) == 0
    assert run(["info", str(place)]) == 0
    out = capsys.readouterr().out
    assert "4 and 8 bits, as stored   9.1 MB" in out
    assert "4 and 8 bits, as stored (Q8_0 3.0 MB, Q4_0 5.0 MB, accuracy level 4)" in " ".join(out.split())
    about = pytest.importorskip("onnx_textgen_server.pool.sources").FolderSource("mixed", place).describe()
    assert (about.precision, about.size_bytes) == ("4 and 8 bits, as stored", manifest.size_bytes)
    assert "4 and 8 bits, as stored" in repr(onnx_textgen.load(place))
