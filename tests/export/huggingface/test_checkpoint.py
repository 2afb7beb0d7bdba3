"""Checkpoints that are opened without reading them: the numbers are transformers' own, and the errors one line."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.support.tiny_encoder_decoders import tiny_encoder_decoder

from onnx_textgen_export import ExportError
from onnx_textgen_export.huggingface.checkpoint import open_checkpoint
from onnx_textgen_export.weights import streamed as weights

SIZES = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "tied llama": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "experts stacked from one tensor each": lambda: transformers.MixtralConfig(**SIZES, num_local_experts=4),
    "shared and routed experts": lambda: transformers.Qwen2MoeConfig(
        **SIZES, **EXPERTS, num_experts=4, shared_expert_intermediate_size=32, decoder_sparse_step=1
    ),
    "experts with biases": lambda: transformers.GptOssConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, head_dim=16),
    "learned positions": lambda: transformers.GPT2Config(
        vocab_size=300, n_embd=64, n_layer=3, n_head=4, n_positions=64, bos_token_id=None, eos_token_id=None
    ),
    "alibi": lambda: transformers.BloomConfig(vocab_size=300, hidden_size=64, n_layer=3, n_head=4),
    "windows": lambda: transformers.Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=16),
}


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave matrices unmaterialized although they are small here."""
    monkeypatch.setattr(weights, "UNMATERIALIZED_FROM", 1000)


def save(model: transformers.PreTrainedModel, folder: Path, **options: object) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def make(name: str) -> transformers.PreTrainedModel:
    torch.manual_seed(3)
    return transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()


def check_equal(folder: Path, **options: object) -> None:
    """The checkpoint opened here and by transformers: the same names, ties, numbers and logits."""
    wanted = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    model, streamed = open_checkpoint(folder, allow_pickle="use_safetensors" in options)
    ours, theirs = model.state_dict(keep_vars=True), wanted.state_dict(keep_vars=True)
    assert ours.keys() == theirs.keys()
    assert [name for name, tensor in model.named_parameters() if not torch.equal(streamed.load(name), theirs[name])] == []
    assert [(n, b.sum()) for n, b in model.named_buffers()] == [(n, b.sum()) for n, b in wanted.named_buffers()]
    groups = [{frozenset(k for k, v in each.items() if v is one) for one in each.values()} for each in (ours, theirs)]
    assert groups[0] == groups[1], "other tensors are tied"
    ids = torch.arange(20)[None]
    with torch.no_grad():
        with streamed.present():
            got = model(ids).logits
        assert torch.equal(got, wanted(ids).logits)


@pytest.mark.parametrize("name", CONFIGS)
def test_numbers_ties_and_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    check_equal(save(make(name), tmp_path / "checkpoint"))


def test_sharded_and_half_precision_checkpoints_are_read_in_float32(tmp_path: Path) -> None:
    model = make("tied llama")
    for dtype in (torch.float16, torch.bfloat16):
        folder = save(model.to(dtype), tmp_path / str(dtype), max_shard_size="50KB")
        assert len(list(folder.glob("*.safetensors"))) > 2
        check_equal(folder)


def test_a_pickle_is_read_only_where_that_is_allowed_and_gives_tensors_only(tmp_path: Path) -> None:
    folder = save(make("llama"), tmp_path / "checkpoint")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(ExportError, match="a pickle, which can run code when opened"):
        open_checkpoint(folder)
    check_equal(folder, use_safetensors=False)
    torch.save({"weight": Path("code")}, folder / "pytorch_model.bin")
    with pytest.raises(ExportError, match="cannot be opened as plain tensors"):
        open_checkpoint(folder, allow_pickle=True)


def test_a_tied_layer_of_its_own_numbers_is_not_tied(tmp_path: Path) -> None:
    folder = save(make("tied llama"), tmp_path / "checkpoint")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 2
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    check_equal(folder)


def test_parameters_are_unmaterialized_outside_and_given_back_after_an_error(tmp_path: Path) -> None:
    model, streamed = open_checkpoint(save(make("llama"), tmp_path / "checkpoint"))
    before = dict(model.named_parameters())
    with pytest.raises(RuntimeError), streamed.present():
        assert model.model.embed_tokens.weight is not before["model.embed_tokens.weight"]
        assert model.model.layers[0].mlp.up_proj.weight is before["model.layers.0.mlp.up_proj.weight"], "lent before it runs"
        model(torch.zeros(1, 3, 7))
    assert all(parameter is before[name] for name, parameter in model.named_parameters())


def broken(folder: Path, change) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def refused(folder: Path, match: str) -> None:
    with pytest.raises(ExportError, match=match) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)


def test_incomplete_and_unfitting_checkpoints_are_refused_in_one_line(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    folder = save(make("llama"), tmp_path / "missing")
    refused(broken(folder, lambda tensors: tensors.pop(name)), rf"lacks the weights of {name} \(1 in all\)")
    folder = save(make("llama"), tmp_path / "shape")
    refused(broken(folder, lambda tensors: tensors.update({name: torch.zeros(5, 64)})), r"has the shape \[5, 64\]")
    folder = save(make("llama"), tmp_path / "index")
    index = {"weight_map": {name: "model-00002-of-00009.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "names model-00002-of-00009.safetensors, which is not there")


@pytest.mark.parametrize("model_type", ["marian", "m2m_100", "pegasus"])
def test_positions_that_a_checkpoint_does_not_hold_are_computed_as_transformers_does(model_type: str, tmp_path: Path) -> None:
    model = tiny_encoder_decoder(model_type)
    folder = save(model, tmp_path)
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(("embed_positions.weight", "final_logits_bias"))]:
        del tensors[name]
    save_file(tensors, path, {"format": "pt"})
    opened, loaded = open_checkpoint(folder)
    reference = type(model).from_pretrained(folder).state_dict()
    for name, tensor in opened.state_dict(keep_vars=True).items():
        found = loaded.load(name) if isinstance(tensor, torch.nn.Parameter) else tensor
        assert torch.equal(found, reference[name]), name
