"""The recipe of a package rebuilds its bytes, whatever the source stores; what does not follow from the source is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from onnx_textgen.cli import run
from onnx_textgen.package.reading import read_manifest
from onnx_textgen.recipes.building import build
from onnx_textgen.recipes.recipe import read_recipe
from onnx_textgen_export import ExportError, export
from onnx_textgen_export.package import recipe as recipes
from onnx_textgen_export.package.recipe import make_recipe
from support.costs import by_cost
from support.gguf_files import tiny_model, write_gguf


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check(package: Path, source: Path, work: Path, *, literal: int = 0) -> None:
    """The recipe gives the same bytes, of which at most `literal` come from no source."""
    make_recipe(package, source, work / "recipe")
    assert len(read_recipe(work / "recipe").literals) <= literal
    assert files(build(work / "recipe", source, work / "built")) == files(package)


@pytest.mark.parametrize("kind", by_cost(["Q4_1", "Q8_0"], ["Q4_0", "Q5_0", "F16"]))
@pytest.mark.parametrize("architecture", by_cost(["llama"], ["qwen2"]))
def test_packages_of_gguf_files_are_made_of_the_files_own_bytes(tmp_path: Path, architecture: str, kind: str) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model(architecture, tie_word_embeddings=True), architecture, kind=kind)
    check(export(tmp_path / "model.gguf", tmp_path / "out").folder, tmp_path / "model.gguf", tmp_path)


@pytest.mark.slow
def test_packages_of_k_quants_follow_from_the_files_bytes_too(tmp_path: Path) -> None:
    model = tiny_model("llama", hidden_size=256, intermediate_size=512, tie_word_embeddings=False)
    kinds = {"q_proj": "Q2_K", "k_proj": "Q3_K", "v_proj": "Q5_K", "o_proj": "Q5_1", "up_proj": "Q6_K"}
    write_gguf(tmp_path / "model.gguf", model, "llama", kind="Q4_K", kinds=kinds)
    package = export(tmp_path / "model.gguf", tmp_path / "out").folder
    assert {"Q4_K", *kinds.values()} == set(read_manifest(package).quantization["sources"])
    size = sum(path.stat().st_size for path in (package / "onnx").glob("*_data"))
    check(package, tmp_path / "model.gguf", tmp_path, literal=size // 100)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_checkpoints_in_floats_are_copied_converted_and_transposed(
    tmp_path: Path, precision: str, dtype: str, shared: Path
) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(shared / "checkpoints" / "stories260K", dtype=dtype)
    model.save_pretrained(tmp_path / "checkpoint")
    source = tmp_path / "checkpoint" / "model.safetensors"
    tokenizer = shared / "checkpoints" / "stories260K" / "tokenizer.json"
    package = export(tmp_path / "checkpoint", tmp_path / "out", precision=precision, tokenizer=tokenizer).folder
    check(package, source, tmp_path, literal=70_000)  # the tables of positions


def test_few_other_bytes_go_with_the_recipe_and_many_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    weight = model.model.layers[0].mlp.up_proj.weight
    weight.data[3, :32] = 2.0 * weight.data[3, :32].sign()  # even numbers of steps: the exporter finds the larger step
    write_gguf(tmp_path / "model.gguf", model, "llama", kind="Q8_0")
    package = export(tmp_path / "model.gguf", tmp_path / "out").folder
    check(package, tmp_path / "model.gguf", tmp_path, literal=1_000)
    rounded = export(tmp_path / "model.gguf", tmp_path / "rounded", precision="int4").folder
    monkeypatch.setattr(recipes, "MOST_LITERAL_BYTES", 1000)
    with pytest.raises(ExportError, match=r"do not follow from model\.gguf by the steps that recipes have"):
        make_recipe(rounded, tmp_path / "model.gguf", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_command_writes_a_recipe_at_the_export_and_of_a_folder_that_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "model.gguf", tmp_path / "out"
    write_gguf(source, tiny_model("llama"), "llama", kind="Q8_0")
    assert run(["export", "owner/name", "--out", str(out), "--recipe", str(tmp_path / "none")]) == 2
    assert "--recipe needs a source with one weights file" in capsys.readouterr().err
    for name in ("first", "second"):
        assert run(["export", str(source), "--out", str(out), "--recipe", str(tmp_path / name)]) == 0
        assert f"{tmp_path / name}: 0.0" in capsys.readouterr().err
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert run(["build", str(tmp_path / "first"), str(source), "--out", str(tmp_path / "built")]) == 0
    assert files(tmp_path / "built") == files(out)
