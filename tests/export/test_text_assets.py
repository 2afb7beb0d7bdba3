"""Tokenizer, template, special ids and defaults come along from a Hugging Face checkpoint folder."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers

import onnx_textgen
from onnx_textgen_export import ExportError, export
from onnx_textgen_export.text_assets import read_text_assets

TEXTS = ["Hello, world!", "  two  spaces\n\nand lines", "naïve café 😀 日本語", "", "don't <|endoftext|> stop"]


def test_a_gpt2_checkpoint_with_vocab_and_merges_becomes_a_package_that_tokenizes_alike(shared: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64)
    checkpoint = tmp_path / "gpt2"
    transformers.GPT2LMHeadModel(config).save_pretrained(checkpoint)
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(shared / "tokenizers" / "gpt2" / name, checkpoint)
    package = onnx_textgen.load(export(checkpoint, tmp_path / "package").folder, threads=1)
    reference = transformers.GPT2Tokenizer.from_pretrained(checkpoint)
    for text in TEXTS:
        ids = package.tokenizer.encode(text)
        assert ids == reference(text)["input_ids"]
        assert package.tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)
    assert package.manifest.eos_ids == (50256,)
    result = package.generate("Hello", max_new_tokens=5, temperature=0)
    with torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
        ids = torch.tensor([reference("Hello")["input_ids"]])
        want = model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=50256)
    assert [*result.prompt_ids, *result.token_ids] == want[0].tolist()


@pytest.mark.parametrize("name", ["llama2", "phi-3-mini"])
def test_a_tokenizer_folder_is_read_as_transformers_reads_it(shared: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(shared / "tokenizers" / name, tmp_path / name))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": [2, 32000], "temperature": 0.6}))
    assets = read_text_assets(folder)
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    assert assets.tokenizer is not None
    for text in TEXTS:
        assert assets.tokenizer.encode(text).ids == reference(text)["input_ids"]
    assert assets.chat_template == reference.chat_template
    assert (assets.bos_id, assets.eos_ids, assets.generation) == (1, (2, 32000), {"temperature": 0.6})


def test_a_chat_template_travels_with_the_package(shared: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(shared / "checkpoints" / "stories260K", tmp_path / "checkpoint"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    package = onnx_textgen.load(export(folder, tmp_path / "package").folder)
    assert package.chat_template == template


def test_sampling_defaults_that_the_checkpoint_switches_off_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": False, "temperature": 0.3, "eos_token_id": None}))
    assets = read_text_assets(tmp_path)
    assert (assets.generation, assets.eos_ids, assets.tokenizer) == ({}, (), None)


def test_settings_that_are_no_json_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ExportError, match=r"config\.json is not valid JSON"):
        read_text_assets(tmp_path)
