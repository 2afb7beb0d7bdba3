"""What is exported into the cache of models: a quantised source with its own numbers, any other at 8 bits, found by its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.hub.model_cache import VARIABLE, place_of
from onnx_textgen.package.reading import read_manifest
from onnx_textgen_export import ExportError
from onnx_textgen_export.into_cache import make_package
from support.gguf_files import tiny_model, write_gguf
from support.image_checkpoints import KINDS, REFUSED, write_checkpoint


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))


def test_what_is_exported_opens_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), "llama", kind="Q8_0")
    make_package(str(tmp_path / "model.gguf"), place_of("owner/name"), "name", "an origin", None)
    manifest = read_manifest(place_of("owner/name"))
    assert (manifest.name, manifest.source) == ("name", "an origin")
    assert set(manifest.quantization) == {"bits", "accuracy_level", "as_stored", "sources"}, "no number was rounded"
    error = capsys.readouterr().err
    assert "forecast: " in error
    assert "name is in " in error
    assert run(["info", "owner/name"]) == 0
    assert re.search(r"from Q8_0 +kept: .*q_proj", shown := capsys.readouterr().out)
    assert "rounded: " not in shown
    model = onnx_textgen.load("owner/name")
    assert len(model.generate([5, 9, 20], max_new_tokens=3, temperature=0).token_ids) == 3
    assert manifest.has_attention_maps and model.embed([5, 9, 20], pooling="mean").size


def test_others_are_rounded_to_8_bits_and_a_failure_leaves_the_model_that_was_there(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path / "checkpoint")
    make_package(str(tmp_path / "checkpoint"), place_of("a/b"), "b", None, None)
    before = read_manifest(place_of("a/b"))
    assert (before.precision, before.source) == ("int8", "the checkpoint checkpoint")
    (tmp_path / "checkpoint" / "config.json").write_text("{}")
    with pytest.raises(ExportError):
        make_package(str(tmp_path / "checkpoint"), place_of("a/b"), "b", None, "fp32")
    assert read_manifest(place_of("a/b")) == before


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "reads"), [("llava", True), ("llava_next", False), ("qwen3_vl", True)])
def test_a_part_that_reads_pictures_is_kept_where_it_can_be(
    model_type: str, reads: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = KINDS.get(model_type) or REFUSED[model_type][0]
    write_checkpoint(model_type, tmp_path / "checkpoint", kind)
    make_package(str(tmp_path / "checkpoint"), place_of("a/b"), "b", None, "fp32")
    assert (read_manifest(place_of("a/b")).images is not None) == reads
    error = capsys.readouterr().err
    assert ("images: left out" in error) != reads and "--text-only" not in error
