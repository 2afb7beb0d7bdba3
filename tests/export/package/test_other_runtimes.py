"""Other runtimes open our packages; onnxruntime-genai gives the same greedy tokens."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import onnx_textgen
from onnx_textgen.package.integrity import check_files
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import CONFIG, GENAI_CONFIG, GENERATION_CONFIG, SETTINGS_OF_OTHERS
from onnx_textgen.package.reading import read_manifest
from onnx_textgen_export import export
from onnx_textgen_export.package.other_runtimes import generation_config, tokenizer_config
from onnx_textgen_export.tokenization.text_assets import TextAssets
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


@pytest.mark.usefixtures("same_rounding")
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
    assert {GENAI_CONFIG, CONFIG, GENERATION_CONFIG, "onnx/model.onnx"} <= manifest.files.keys()
    assert manifest.files["onnx/model.onnx"].size < 200_000
    without = export(shared / "checkpoints" / "stories260K", tmp_path / "out", other_runtimes=False)
    assert not SETTINGS_OF_OTHERS & without.manifest.files.keys()
    assert [path.name for path in (without.folder / "onnx").iterdir()] == ["model.onnx_data"]
    check_files(without.folder, without.manifest)


def test_the_settings_say_what_the_graph_is(stories: dict[str, Path]) -> None:
    config = json.loads((stories["standard"] / GENAI_CONFIG).read_text(encoding="utf-8"))
    assert config["model"]["decoder"]["filename"] == "onnx/model.onnx"
    assert config["search"]["past_present_share_buffer"] is False
    config, geometry = json.loads((stories["ort"] / CONFIG).read_text(encoding="utf-8")), read_manifest(stories["ort"]).geometry
    assert config["transformers.js_config"] == {"dtype": "fp32", "use_external_data_format": {"model.onnx": 1}}
    sizes = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    expected = (geometry.layers, geometry.heads, geometry.kv_heads, geometry.head_size, geometry.vocab_size)
    assert tuple(config[name] for name in sizes) == expected


def test_the_sampling_defaults_of_the_makers_and_the_chat_template_are_where_others_read_them() -> None:
    tokenizer = Tokenizer.from_file(str(find_package("story") / "tokenizer.json"))
    assets = TextAssets(
        tokenizer=tokenizer, chat_template="{{ messages }}", bos_id=0, eos_ids=(1, 2), generation={"temperature": 0.6}
    )
    assert generation_config(assets)["do_sample"] is True
    assert generation_config(dataclasses.replace(assets, generation={}))["do_sample"] is False
    assert tokenizer_config(assets)["chat_template"] == "{{ messages }}"
    without = tokenizer_config(dataclasses.replace(assets, chat_template=None))
    assert "chat_template" not in without
    assert without["add_bos_token"] == (0 in tokenizer.encode("").ids)
