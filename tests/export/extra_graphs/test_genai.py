"""onnxruntime-genai opens our packages and gives the same greedy tokens."""

import json
from pathlib import Path

import numpy as np
import pytest

import onnx_textgen
from onnx_textgen.package.integrity import check_files
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import GENAI_CONFIG, GENAI_GRAPH
from onnx_textgen.package.reading import read_manifest
from onnx_textgen_export import export
from support.genai_engine import genai, genai_tokens


def same_tokens(folder: Path) -> None:
    model = onnx_textgen.load(folder, device="cpu", threads=1)
    for prompt in ("Once upon a time", "The little dog", "Lily and Tom went to the park. They"):
        ids = model.encode(prompt)
        ours = model.generate(ids, max_new_tokens=60, temperature=0)
        theirs = genai_tokens(folder, ids, 60)
        ends = [i for i, token_id in enumerate(theirs) if token_id in model.manifest.eos_ids]
        assert tuple(theirs[: ends[0]] if ends else theirs) == ours.token_ids


@pytest.mark.parametrize("target", ["ort", "standard"])
def test_greedy_tokens_are_the_same_at_both_targets(target: str, stories: dict[str, Path]) -> None:
    same_tokens(stories[target])


@pytest.mark.parametrize("name", ["story", "tiny-transformer"])
def test_the_embedded_models_write_the_same_texts_at_int8(name: str) -> None:
    same_tokens(find_package(name))


def test_its_tokenizer_reads_and_writes_the_same_text(stories: dict[str, Path]) -> None:
    model = onnx_textgen.load(stories["ort"], device="cpu", threads=1)
    tokenizer = genai.Tokenizer(genai.Model(str(stories["ort"])))
    ids = [int(token_id) for token_id in tokenizer.encode("Once upon a time, Lily saw a dog.")]
    assert ids == model.tokenizer.encode("Once upon a time, Lily saw a dog.", add_special_tokens=False)
    assert tokenizer.decode(np.array(ids, dtype=np.int32)).strip() == "Once upon a time, Lily saw a dog."


@pytest.mark.slow
def test_the_files_are_listed_in_the_manifest_small_and_left_out_on_demand(
    stories: dict[str, Path], shared: Path, tmp_path: Path
) -> None:
    manifest = read_manifest(stories["ort"])
    assert {GENAI_CONFIG, GENAI_GRAPH} <= manifest.files.keys()
    assert manifest.files[GENAI_GRAPH].size < 200_000
    without = export(shared / "checkpoints" / "stories260K", tmp_path / "out", genai=False)
    assert GENAI_CONFIG not in without.manifest.files
    assert not (without.folder / GENAI_GRAPH).exists()
    check_files(without.folder, without.manifest)


def test_the_configuration_says_what_the_graph_is(stories: dict[str, Path]) -> None:
    config = json.loads((stories["standard"] / GENAI_CONFIG).read_text(encoding="utf-8"))
    assert config["model"]["decoder"]["filename"] == GENAI_GRAPH
    assert config["search"]["past_present_share_buffer"] is False
