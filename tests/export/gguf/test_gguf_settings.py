"""Every setting of a GGUF file reaches the model, or is refused by its name: none is lost silently."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
import torch
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

from onnx_textgen_export import ExportError
from onnx_textgen_export.gguf.gguf_settings import HARMLESS, make_config
from onnx_textgen_export.tracing.opening import open_source
from support.gguf_files import tiny_model, write_gguf

IDS = torch.arange(3, 67)[None]
THETA = 10_000.0
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": THETA}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": THETA}
KEYS = sorted(
    key.removeprefix("{arch}.")
    for group in vars(gguf.Keys).values()
    if isinstance(group, type)
    for key in vars(group).values()
    if isinstance(key, str) and key.startswith("{arch}.")
)
"""Every setting of an architecture that llama.cpp knows."""


def prefixed(**settings: Any) -> dict[str, Any]:
    return {f"rope.scaling.{key}": value for key, value in settings.items()}


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("settings", "rotary"),
    [
        (prefixed(type="linear", factor=4.0), LINEAR),
        (prefixed(factor=4.0), LINEAR),  # linear is llama.cpp's default
        (prefixed(type="yarn", factor=4.0, original_context_length=32), YARN),
        (
            prefixed(type="yarn", factor=4.0, original_context_length=32, finetuned=True, yarn_beta_fast=16.0),
            {**YARN, "beta_fast": 16.0},
        ),
        (
            prefixed(type="yarn", factor=1.0, original_context_length=32, attn_factor=1.5),
            {**YARN, "factor": 1.0, "attention_factor": 1.5},
        ),
        (prefixed(type="none", factor=4.0, original_context_length=32), {"rope_type": "default", "rope_theta": THETA}),
    ],
)
def test_the_rotary_scaling_of_a_file_is_applied(tmp_path: Path, architecture: str, settings: Any, rotary: dict[str, Any]) -> None:
    wanted = tiny_model(architecture, rope_parameters=rotary)
    write_gguf(tmp_path / "tiny.gguf", wanted, architecture, settings=settings)
    opened = open_source(tmp_path / "tiny.gguf")
    with torch.no_grad(), opened.weights.present():
        assert torch.equal(opened.module(IDS).logits, wanted(IDS).logits)


def file_with(architecture: str, settings: dict[str, Any]) -> Any:
    """What `make_config` looks at in a file."""
    metadata = {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in settings.items()}
    return SimpleNamespace(paths=[Path("tiny.gguf")], metadata=metadata)


def config_of(architecture: str, kind: str, settings: dict[str, Any], **found: Any) -> dict[str, Any]:
    """The config of a file with these settings; `found`: what transformers' reader has found."""
    config: dict[str, Any] = make_config(file_with(architecture, settings), {"model_type": kind, **found}).to_dict()
    return config


@pytest.mark.parametrize("key", [key for key in KEYS if GGUF_CONFIG_MAPPING["qwen3"].get(key) is None])
def test_no_setting_is_lost(key: str) -> None:
    plain = config_of("qwen3", "qwen3", {})
    try:
        changed = config_of("qwen3", "qwen3", {key: 6})
    except ExportError as error:
        assert f"tiny.gguf sets qwen3.{key} to 6, which changes numbers" in str(error)
    else:
        assert (changed == plain) == (key in HARMLESS or key == "rope.scaling.original_context_length")  # which needs a type


@pytest.mark.parametrize(
    ("architecture", "kind", "settings", "expected"),
    [
        ("qwen3", "qwen3", {"attention.key_length": 128, "attention.value_length": 128}, {"head_dim": 128}),
        ("llama", "llama", {"rope.dimension_count": 64, "attention.key_length": 64}, {"head_dim": 64}),
        ("llama", "llama", {"expert_count": 0, "expert_used_count": 0, "tensor_data_layout": "Meta AI original pth"}, {}),
        ("qwen2", "qwen2", {"rope.dimension_count": 128, "attention.key_length": 128, "pooling_type": 3}, {}),
        ("qwen2moe", "qwen2_moe", {"expert_feed_forward_length": 1408, "expert_shared_feed_forward_length": 5632}, {}),
        ("qwen3moe", "qwen3_moe", {"expert_feed_forward_length": 1536}, {"moe_intermediate_size": 1536}),
        ("gemma2", "gemma2", {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "attention.value_length": 256}, {}),
        ("gemma2", "gemma2", {"final_logit_softcapping": 20.0}, {"final_logit_softcapping": 20.0}),
        ("phi3", "phi3", {"attention.sliding_window": 2047, "rope.dimension_count": 96, **prefixed(original_context_length=4096)},
         {"sliding_window": 2047}),
        ("starcoder2", "starcoder2", {"rope.freq_base": 999_999.4},
         {"rope_parameters": {"rope_type": "default", "rope_theta": 999_999.4}}),
        ("stablelm", "stablelm", {"rope.dimension_count": 20, "rope.freq_base": THETA, "use_parallel_residual": False}, {}),
        ("nemotron", "nemotron", {"attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": 64, **prefixed(type="none")}, {}),
        ("falcon", "falcon", {"attention.layer_norm_epsilon": 1e-5, "tensor_data_layout": "jploski"}, {}),
        ("bloom", "bloom", {"context_length": 2048, "feed_forward_length": 256, "attention.head_count_kv": 8}, {}),
        ("mamba", "mamba", {"feed_forward_length": 0, "attention.head_count": 0, "ssm.dt_b_c_rms": False}, {}),
        ("t5", "t5", {"attention.value_length": 64, "attention.layer_norm_rms_epsilon": 1e-6, "decoder_block_count": 6}, {}),
        ("gemma3", "gemma3_text", {"attention.value_length": 256, "rope.freq_base_swa": THETA,
                                  **prefixed(type="linear", factor=8.0)},
         {"rope_parameters": {
             "sliding_attention": {"rope_type": "default", "rope_theta": THETA},
             "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0}}}),
    ],
)  # fmt: skip
def test_settings_that_converters_write_are_taken(
    architecture: str, kind: str, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = config_of(architecture, kind, settings)
    plain = config_of(architecture, kind, {})
    assert found == plain | expected


def test_a_scaling_beside_factors_of_each_frequency_is_refused() -> None:
    rotary = {"rope_type": "longrope", "rope_theta": THETA, "short_factor": [1.0], "long_factor": [1.0]}
    settings = {"model_type": "llama", "rope_parameters": rotary | {"original_max_position_embeddings": 128, "factor": 1.0}}
    with pytest.raises(ExportError, match=r"sets llama\.rope\.scaling\.type to linear"):
        make_config(file_with("llama", prefixed(type="linear", factor=4.0)), settings)


def test_a_refusal_names_the_file_and_the_key(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), "llama", settings={"attention.clamp_kqv": 8.0})
    with pytest.raises(
        ExportError, match=r"^\S+tiny\.gguf sets llama\.attention\.clamp_kqv to 8\.0, which changes numbers and cannot"
    ):
        open_source(tmp_path / "tiny.gguf")
