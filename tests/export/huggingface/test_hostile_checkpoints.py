"""What a damaged or hostile checkpoint declares is compared with what it holds, and every refusal is one short line."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from onnx_textgen_export import ExportError
from onnx_textgen_export.gguf.gguf_checkpoint import open_gguf
from onnx_textgen_export.huggingface.checkpoint import open_checkpoint
from onnx_textgen_export.weights.size_checks import check_sizes
from support.gguf_files import tiny_model, write_gguf

LAYERS, LIMIT = "and 21 tensors", "and 16,777,216 is the limit"
CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"num_hidden_layers": 1_000_000}, f"num_hidden_layers 1000000, {LAYERS}"),
    ({"num_hidden_layers": 10**30}, f"num_hidden_layers 1{'0' * 30}, {LAYERS}"),
    ({"vocab_size": 2**31}, f"vocab_size 2147483648, {LIMIT}"),
    ({"text_config": {"num_hidden_layers": 99_999}}, f"num_hidden_layers 99999, {LAYERS}"),
    ({"num_experts": 20_000}, "num_experts 20000, and 10,000 is the limit"),
    ({"num_attention_heads": 0}, "transformers cannot"),
    ({"head_dim": 0}, "transformers cannot"),
    ({"hidden_size": "64"}, "transformers cannot"),
    ({"num_attention_heads": [4]}, "transformers cannot"),
    ({"model_type": "bert"}, "the checkpoint lacks the weights of"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    tiny_model("llama").save_pretrained(folder)
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(ExportError) as caught:
        open_checkpoint(folder)
    message = str(caught.value)
    assert message.isprintable() and len(message) < 1000
    return message


@pytest.mark.parametrize(("changes", "expected"), CONFIGS, ids=str)
def test_sizes_and_types_of_a_config_are_refused_before_a_model_is_built(
    checkpoint: Path, tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    (tmp_path / "model.safetensors").symlink_to(checkpoint / "model.safetensors")
    config = json.loads((checkpoint / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    assert expected in refused(tmp_path)


@pytest.mark.parametrize(
    "name", [5, {"a": 1}, None, "x" * 100_000, "\x1b[2Jx", "a\nb", "../model.safetensors"], ids=lambda n: str(n)[:9]
)
def test_an_index_that_names_no_file_is_refused(checkpoint: Path, tmp_path: Path, name: object) -> None:
    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": name, "norm": "norm"}}))
    assert "which is not there" in refused(tmp_path)


def test_names_in_an_error_are_shown_without_escapes_and_cut() -> None:
    assert str(ExportError(f"it holds {'b' * 9999} \x1b[31m\n")) == f"it holds {'b' * 100}... \ufffd[31m\ufffd"


def test_layers_of_a_gguf_file_are_compared_with_its_tensors(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), "llama")
    data = (tmp_path / "tiny.gguf").read_bytes()
    key = b"llama.block_count"
    place = data.index(key) + len(key) + 4  # after the type of the value
    (tmp_path / "tiny.gguf").write_bytes(data[:place] + b"\xff" * 4 + data[place + 4 :])
    with pytest.raises(ExportError, match=r"says llama\.block_count 4294967295, and 21 tensors; fetch the model again"):
        open_gguf(tmp_path / "tiny.gguf", tmp_path, has_tokenizer=True)


@pytest.mark.parametrize(
    "make",
    [
        transformers.LlamaConfig,
        transformers.T5Config,
        transformers.Qwen3MoeConfig,
        transformers.GPT2Config,
        transformers.BloomConfig,
    ],
)
def test_sizes_of_real_models_are_taken(make: Any) -> None:
    check_sizes(make().to_dict() | {"max_position_embeddings": 10_485_760}, tensors=400, where=Path("config.json"))
