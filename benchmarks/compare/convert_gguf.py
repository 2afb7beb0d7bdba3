"""`python convert_gguf.py CHECKPOINT OUT.gguf`: a Llama, Qwen2 or GPT-2 checkpoint as llama.cpp's file, float32.

llama.cpp's own converter is not on the package index; its library of names and its writer, `gguf`, are.
"""

import json
import sys
from pathlib import Path

import gguf
import ml_dtypes  # noqa: F401 - teaches NumPy bfloat16, which checkpoints have
import numpy as np
from safetensors.numpy import load_file

ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "gpt2": gguf.MODEL_ARCH.GPT2}


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection in the order of llama.cpp's rotation of neighbours, which Llama uses there."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def as_llama_cpp(weight: np.ndarray, name: str, kind: str, heads: int) -> np.ndarray:
    """A weight in llama.cpp's order."""
    if kind == "llama" and ("q_proj" in name or "k_proj" in name):
        weight = interleaved(weight, heads)
    if kind == "gpt2" and weight.ndim == 2 and "wte" not in name and "wpe" not in name:
        weight = weight.T  # GPT-2's Conv1D holds [in, out]
    return np.ascontiguousarray(weight)


def main(checkpoint: Path, out: Path) -> None:
    """Write the file."""
    config = json.loads((checkpoint / "config.json").read_text())
    kind = config["model_type"]
    layers, heads = config.get("num_hidden_layers", config.get("n_layer")), config.get("num_attention_heads", config.get("n_head"))
    kv_heads, hidden = config.get("num_key_value_heads", heads), config.get("hidden_size", config.get("n_embd"))
    architecture = ARCHITECTURES[kind]
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_context_length(config.get("max_position_embeddings", config.get("n_positions")))
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config.get("intermediate_size", 4 * hidden))
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    pieces = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(pieces, key=pieces.get))
    writer.add_token_types([gguf.TokenType.NORMAL] * len(pieces))
    writer.add_token_merges(["! !"])  # llama.cpp wants some; this one joins to no piece
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if kind == "gpt2":
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    else:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_dimension_count(hidden // heads)
        writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    names = gguf.get_tensor_name_map(architecture, layers)
    tensors = {name: value for file in sorted(checkpoint.glob("*.safetensors")) for name, value in load_file(file).items()}
    tied = config.get("tie_word_embeddings", True)
    for name, stored in tensors.items():
        if name.endswith((".attn.bias", ".attn.masked_bias")) or (tied and name == "lm_head.weight"):
            continue
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        value = as_llama_cpp(stored.astype(np.float32), name, kind, heads if "q_proj" in name else kv_heads)
        writer.add_tensor(found, value)
        if found == "token_embd.weight" and kind == "gpt2":
            writer.add_tensor("output.weight", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
