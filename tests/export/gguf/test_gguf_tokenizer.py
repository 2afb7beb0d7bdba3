"""Every key of a GGUF file's tokenizer does what it does in llama.cpp, or is refused by name."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from onnx_textgen.text.chat_template import render_chat
from onnx_textgen_export import ExportError
from onnx_textgen_export.gguf.gguf_tokenizer import follow
from onnx_textgen_export.tracing.opening import open_source
from support.gguf_files import tiny_model, write_gguf

PIECES = ["<unk>", "<s>", "</s>", "\u2581", "h", "i", "\u2581hi", "\u2581h", "hi", "1", "2", "12", "\u0120", "\u0120hi"]
MERGES = [("\u2581", "h"), ("\u2581h", "i"), ("h", "i"), ("1", "2"), ("\u0120", "hi")]


def pieces_of(text: str, model: str, **given: Any) -> list[str]:
    vocab = {piece: index for index, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=MERGES, unk_token="<unk>"))
    follow(tokenizer, {"model": model, "bos_token_id": 1, "eos_token_id": 2, **given}, Path("tiny.gguf"))
    return tokenizer.encode(text).tokens


@pytest.mark.parametrize(
    ("text", "model", "given", "pieces"),
    [
        ("hi", "llama", {}, ["<s>", "\u2581hi"]),
        (" hi", "llama", {}, ["<s>", "\u2581", "\u2581hi"]),
        ("hi", "llama", {"add_space_prefix": False}, ["<s>", "hi"]),
        ("hi", "llama", {"add_bos_token": False, "add_eos_token": True}, ["\u2581hi", "</s>"]),
        ("hi 12", "gpt2", {"pre": "gpt-2"}, ["hi", "\u0120", "12"]),
        ("hi 12", "gpt2", {"pre": "smollm"}, ["hi", "\u0120", "1", "2"]),
        ("hi hi", "gpt2", {"add_bos_token": True}, ["<s>", "hi", "\u0120hi"]),
        ("hi", "gpt2", {"pre": "llama-bpe"}, ["<s>", "hi"]),
        ("hi", "gpt2", {"pre": "tekken", "add_bos_token": False}, ["hi"]),
        ("hi  hi", "t5", {"remove_extra_whitespaces": True, "add_space_prefix": True}, ["\u2581hi", "\u2581hi", "</s>"]),
        ("hi  hi", "t5", {}, ["hi", "\u2581", "\u2581hi", "</s>"]),
    ],
)
def test_a_text_is_divided_and_framed_as_in_llama_cpp(text: str, model: str, given: dict[str, Any], pieces: list[str]) -> None:
    assert pieces_of(text, model, **given) == pieces


def test_a_split_that_is_not_known_is_refused() -> None:
    with pytest.raises(ExportError, match=r"tiny\.gguf divides texts as viking, whose rule is not known; give a tokenizer\.json"):
        pieces_of("hi", "gpt2", pre="viking")


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama")


def test_flags_ends_templates_and_sampling_reach_the_package(model: Any, tmp_path: Path) -> None:
    ggml = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.eom_token_id": 0, "tokenizer.chat_template.tool_use": "TOOLS\n"}
    sampling = {"general.sampling.temp": 0.5, "general.sampling.top_k": 20, "general.sampling.xtc_probability": 0.25}
    write_gguf(tmp_path / "tiny.gguf", model, "llama", keys=ggml | sampling)
    assets = open_source(tmp_path / "tiny.gguf").assets
    assert assets.tokenizer is not None and assets.chat_template is not None
    assert assets.tokenizer.encode("!").ids[0] == 0
    assert set(assets.eos_ids) == {0, 1, 2}
    assert (assets.generation, assets.left_out) == ({"temperature": 0.5, "top_k": 20}, {"xtc_probability": 0.25})
    messages = [{"role": "user", "content": "hi"}]
    texts = [
        render_chat(assets.chat_template, messages, bos_token="", eos_token="", tools=tools) for tools in (None, [{"name": "f"}])
    ]
    assert texts == ["<user>hi", "TOOLS"]


def test_a_chat_model_whose_makers_say_nothing_gets_a_low_temperature(model: Any, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", model, "llama")
    assert open_source(tmp_path / "tiny.gguf").assets.generation == {"temperature": 0.3, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


@pytest.mark.parametrize("key", ["add_sep_token", "a_new_flag"])
def test_a_key_that_is_not_read_is_refused(model: Any, tmp_path: Path, key: str) -> None:
    write_gguf(tmp_path / "tiny.gguf", model, "llama", keys={f"tokenizer.ggml.{key}": True})
    with pytest.raises(ExportError, match=rf"sets tokenizer\.ggml\.{key}, which is not read; give a tokenizer\.json"):
        open_source(tmp_path / "tiny.gguf")
