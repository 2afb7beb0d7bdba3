"""Tokenizer, template, special ids and defaults come along from a Hugging Face checkpoint folder."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, models

import onnx_textgen
from onnx_textgen.errors import PackageError
from onnx_textgen.package.end_tokens import end_of_turn
from onnx_textgen.text.chat_template import render_chat
from onnx_textgen_export import export
from onnx_textgen_export.exporting.checks import text_lines
from onnx_textgen_export.tokenization.text_assets import read_text_assets

TEXTS = ["Hello, world!", "  two  spaces\n\nand lines", "naïve café 😀 日本語", "", "don't <|endoftext|> stop"]


@pytest.mark.slow
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
def test_settings_ids_and_template_are_read_from_a_checkpoint_folder(shared: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(shared / "tokenizers" / name, tmp_path / name))
    (folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 1, "eos_token_id": [2, 7], "do_sample": True, "temperature": 0.6})
    )
    assets = read_text_assets(folder)
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    assert assets.tokenizer is not None
    for text in [text for text in TEXTS if not text.startswith(" ") and "<|" not in text]:  # where transformers 5 errs
        assert assets.tokenizer.encode(text).ids == reference(text)["input_ids"]
    assert assets.chat_template == reference.chat_template
    assert (assets.bos_id, assets.eos_ids[:2], assets.generation) == (1, (2, 7), {"temperature": 0.6, "top_k": 50})
    # generation_config.json forgets what Phi-3's template writes behind an answer, and what its settings call the end.
    ends = [assets.tokenizer.id_to_token(token_id) for token_id in assets.eos_ids[2:]]
    assert ends == ([] if name == "llama2" else ["<|endoftext|>", "<|end|>"])


@pytest.mark.slow
def test_a_chat_template_travels_with_the_package(shared: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(shared / "checkpoints" / "stories260K", tmp_path / "checkpoint"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    package = onnx_textgen.load(export(folder, tmp_path / "package").folder)
    assert package.chat_template == template


def test_chats_have_a_low_temperature_where_the_makers_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert read_text_assets(tmp_path).generation == {}
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}")
    assert read_text_assets(tmp_path).generation == {"temperature": 0.3, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
    (tmp_path / "generation_config.json").write_text("{}")
    assert read_text_assets(tmp_path).generation == {"temperature": 0}, "as transformers reads such a file"


def test_sampling_defaults_that_the_checkpoint_switches_off_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": False, "temperature": 0.3, "eos_token_id": None}))
    assets = read_text_assets(tmp_path)
    assert (assets.generation, assets.eos_ids, assets.tokenizer) == ({"temperature": 0}, (), None)


def test_settings_that_are_no_json_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(PackageError, match=r"config\.json is not valid JSON"):
        read_text_assets(tmp_path)


def vocabulary(*tokens: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "word": 1}, unk_token="<unk>"))
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    return tokenizer


def checkpoint(folder: Path, **files: object) -> Path:
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    vocabulary("<bos>", "<eos>", "<end>", "<tool>").save(str(folder / "tokenizer.json"))
    return folder


ANSWERING = "{% for m in messages %}<bos>{{ m.content }}<end>{{ eos_token }}{% endfor %}{{ '<tool>' if add_generation_prompt }}"


def test_every_place_that_names_an_end_is_read_and_each_id_kept_once(tmp_path: Path) -> None:
    folder = checkpoint(
        tmp_path,
        config={"eos_token_id": 5},
        generation_config={"eos_token_id": [1, 2]},
        tokenizer_config={"eos_token": {"content": "<eos>"}, "chat_template": ANSWERING},
    )
    assert read_text_assets(folder).eos_ids == (1, 2, 5, 3, 4)  # as generated, config, eos_token, behind an answer


def test_an_end_in_config_json_that_is_an_ordinary_word_counts_only_alone(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, config={"eos_token_id": 1})
    assert read_text_assets(folder).eos_ids == (1,)
    checkpoint(folder, tokenizer_config={"eos_token": "<eos>"})
    assert read_text_assets(folder).eos_ids == (3,)


def test_ends_outside_the_vocabulary_of_the_model_are_left_out_unless_it_names_them(tmp_path: Path) -> None:
    settings = {"eos_token": "<eos>", "chat_template": ANSWERING}
    folder = checkpoint(tmp_path, config={"vocab_size": 4, "text_config": {"eos_token_id": 2}}, tokenizer_config=settings)
    assert read_text_assets(folder).eos_ids == (2, 3)


def test_the_template_is_found_wherever_checkpoints_keep_it(tmp_path: Path) -> None:
    assert (
        read_text_assets(checkpoint(tmp_path, chat_template={"chat_template": "in its own json"})).chat_template
        == "in its own json"
    )
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    both = read_text_assets(checkpoint(tmp_path, tokenizer_config={"chat_template": named})).chat_template or ""
    texts = [render_chat(both, [], bos_token="", eos_token="", tools=tools) for tools in (None, [{"name": "f"}])]
    assert texts == ["plain", "tools"]
    assert read_text_assets(checkpoint(tmp_path, tokenizer_config={"chat_template": named[:1]})).chat_template == "tools"
    (tmp_path / "chat_template.jinja").write_text("in a file")
    assert read_text_assets(tmp_path).chat_template == "in a file"


@pytest.mark.parametrize(
    ("template", "end"),
    [
        ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "<|im_end|>"),
        ("Qwen-Qwen2.5-7B-Instruct", "<|im_end|>"),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "<\uff5cend▁of▁sentence\uff5c>"),
        ("google-gemma-2-2b-it", "<end_of_turn>"),
        ("meta-llama-Llama-3.1-8B-Instruct", "<|eot_id|>"),
        ("microsoft-Phi-3.5-mini-instruct", "<|end|>"),
        ("Qwen-Qwen3-Coder-30B-A3B-Instruct", "<|im_end|>"),
        ("smollm3/chat_template", "<|im_end|>"),
    ],
)
def test_the_end_of_a_turn_is_what_a_real_template_writes_behind_an_answer(shared: Path, template: str, end: str) -> None:
    path = next((shared / "chat_templates").rglob(f"{template.rpartition('/')[2]}.jinja"))
    others = ["<|im_start|>", "<|endoftext|>", "<|user|>", "<|assistant|>", "<|start_header_id|>", "<start_of_turn>", "</think>"]
    tokenizer = vocabulary("<bos>", "<eos>", *others, end)
    found = end_of_turn(path.read_text(), tokenizer, {"bos": "<bos>", "eos": end if "deepseek" in template else "<eos>"})
    assert found == tokenizer.token_to_id(end)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.content }}\n{% endfor %}",  # nothing behind an answer
        "{% for m in messages %}{{ m.content }} and <end>{% endfor %}",  # not right behind it
        "{% for m in messages if m.role == 'user' %}{{ m.content }}<end>{% endfor %}",  # no answers at all
        "{{ raise_exception('not today') }}",
        "{% for",
    ],
)
def test_a_template_that_names_no_end_adds_none(template: str) -> None:
    assert end_of_turn(template, vocabulary("<end>"), {"bos": None, "eos": None}) is None


def test_defaults_that_the_runtime_cannot_take_stay_behind(tmp_path: Path) -> None:
    drawn = {"do_sample": True, "temperature": 0.7, "top_k": -1, "top_p": 0, "min_p": 0.05}
    settings = drawn | {"num_beams": 4, "max_length": 20, "typical_p": 0.9, "epsilon_cutoff": 0.0}
    assets = read_text_assets(checkpoint(tmp_path, generation_config=settings))
    assert assets.generation == {"temperature": 0.7, "min_p": 0.05}
    assert assets.left_out == {"num_beams": 4, "typical_p": 0.9}
    assert [*text_lines(assets)] == ["settings: texts do not follow what the makers set: num_beams 4, typical_p 0.9"]


def test_a_tokenizer_given_by_hand_stands_in_for_one_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_text("no model")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    assert read_text_assets(tmp_path, tokenizer=vocabulary("<eos>")).eos_ids == (2,)
