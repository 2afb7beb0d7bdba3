"""GGUF files of tiny models, written by llama.cpp's own package from modules of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from onnx_textgen.backends.variants.adapter_file import LowRank

WORDS = ["<s>", "</s>", "<|eot|>", *(chr(0x21 + number) for number in range(64)), '!"', "#$"]
END_OF_TURN = 2
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}

SCALES_OF_K_QUANTS = {
    gguf.GGMLQuantizationType.Q2_K: {80: 4, 82: 6},
    gguf.GGMLQuantizationType.Q3_K: {108: 4},
    gguf.GGMLQuantizationType.Q4_K: {0: 1, 2: 7.5},
    gguf.GGMLQuantizationType.Q5_K: {0: 0.5, 2: 7.75},
    gguf.GGMLQuantizationType.Q6_K: {208: 1},
}
"""At which bytes of a block float16 scales of scales are, and of minima; how large, so that weights are around zero."""


def tiny_model(kind: str, **changes: Any) -> Any:
    """A model of that type of transformers, with drawn weights."""
    torch.manual_seed(0)
    usual = SIZES | {"vocab_size": len(WORDS), "max_position_embeddings": 128, "bos_token_id": 0, "eos_token_id": 1}
    config = transformers.AutoConfig.for_model(kind, **(usual | changes))
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.train(False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    return model


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp's converter orders those of Llama's queries and keys: the two of a rotary pair side by side."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def quantised(values: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """A matrix in a quantisation; drawn blocks of this size where llama.cpp's package only reads it, as for K-quants."""
    if kind not in SCALES_OF_K_QUANTS:
        return gguf.quantize(values, kind)
    draw, (weights, size) = np.random.default_rng(values.size), gguf.GGML_QUANT_SIZES[kind]
    blocks = draw.integers(0, 256, (len(values), values.shape[1] // weights, size), dtype=np.uint8)
    step = draw.uniform(2e-5, 1e-4, blocks.shape[:2])
    for place, times in SCALES_OF_K_QUANTS[kind].items():
        blocks[..., place : place + 2] = (step * times).astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(len(values), -1)


def write_gguf(
    path: Path,
    model: Any,
    architecture: str,
    *,
    kind: str = "F32",
    kinds: Mapping[str, str] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    settings: Mapping[str, str | float] | None = None,
    keys: Mapping[str, str | float] | None = None,
) -> dict[str, np.ndarray]:
    """Write a model; matrices in the quantisation `kind`. Returns the values by the module's names, as the file has them.

    kinds: other quantisations, by the name of the layer, such as `v_proj`. extra: further tensors. settings: further metadata of
    the architecture, by the key without its prefix. keys: metadata by the whole key.
    """
    config, writer = model.config, gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    for key, value in ({f"{architecture}.{key}": value for key, value in (settings or {}).items()} | dict(keys or {})).items():
        add[type(value)](key, value)
    writer.add_tokenizer_model("gpt2")
    words = [*WORDS, *(f"<unused{place}>" for place in range(config.vocab_size - len(WORDS)))]
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(words) - 3))
    writer.add_token_merges(['! "', "# $"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_eot_token_id(END_OF_TURN)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    stored = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, suffix = name.rpartition(".")
        values, heads = tensor.numpy(), {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        layer = stem.rpartition(".")[2]
        turns = architecture == "llama" and layer in heads
        values = permuted(values, heads[layer]) if turns else values
        quantisation = gguf.GGMLQuantizationType[(kinds or {}).get(layer, kind) if values.ndim == 2 else "F32"]
        data = quantised(values, quantisation)
        writer.add_tensor(f"{names.get_name(stem)}.{suffix}", data, raw_dtype=quantisation)
        read = gguf.dequantize(data, quantisation)
        stored[name] = read if not turns else read.reshape(heads[layer], -1, 2, read.shape[1]).swapaxes(1, 2).reshape(read.shape)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def write_gguf_adapter(path: Path, config: Any, changes: Mapping[str, LowRank], *, alpha: float = 0.0) -> None:
    """Write a LoRA adapter as llama.cpp's convert_lora_to_gguf.py does, for a Llama; `changes` by the parameter's name.

    alpha: what the adapter's scale times its rank is; the matrices do not have it.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for parameter, change in changes.items():
        stem = parameter.removesuffix(".weight")
        layer, wide = stem.rpartition(".")[2], change.wide.T
        name = f"{names.get_name(stem)}.weight"
        writer.add_tensor(f"{name}.lora_a", np.ascontiguousarray(change.narrow.T))
        writer.add_tensor(f"{name}.lora_b", np.ascontiguousarray(permuted(wide, heads[layer]) if layer in heads else wide))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
