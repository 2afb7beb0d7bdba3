"""A folder that every converter reads, of a trained `story`: the same weights under the names of transformers' Llama.

    python -m artifacts.train story --corpora CORPORA --out STORY --tokens 3000000
    python benchmarks/quality/story_as_llama.py STORY LLAMA

Its weights never lay on the grid of a quantised form. Fails where the two do not give the same logits.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from onnx_textgen_export import TinyTransformer

NAMES = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    "embedding": "model.embed_tokens",
    "head": "lm_head",
}


def renamed(name: str) -> str:
    """A parameter's name in transformers' Llama."""
    owner, _, kind = name.rpartition(".")
    if owner == "norm":
        return f"model.norm.{kind}"
    if owner in NAMES:
        return f"{NAMES[owner]}.{kind}"
    layers, number, part = owner.split(".", 2)
    return f"model.{layers}.{number}.{NAMES[part]}.{kind}"


def main() -> None:
    """Convert, compare, save."""
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    story = TinyTransformer.from_folder(folder).eval()
    config = story.config
    if (config.positions, config.activation, config.norm, config.norm_placement) != ("rotary", "silu_gated", "rms", "pre"):
        sys.exit(f"{folder} is no Llama: {config}")
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.width,
            intermediate_size=config.feed_forward,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            max_position_embeddings=config.context_length,
            rms_norm_eps=1e-5,
            rope_theta=config.rotary_base,
            tie_word_embeddings=config.tie_embeddings,
            bos_token_id=0,
            eos_token_id=1,
        )
    ).eval()
    llama.load_state_dict({renamed(name): tensor for name, tensor in story.state_dict().items()})
    ids = torch.arange(64)[None] * 31 % config.vocab_size
    with torch.no_grad():
        torch.testing.assert_close(llama(ids).logits, story(ids), rtol=1e-4, atol=1e-4)
    llama.save_pretrained(out)
    PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")).save_pretrained(out)
    shutil.copy(folder / "tokenizer.json", out / "tokenizer.json")
    AutoTokenizer.from_pretrained(out)
    print(f"{out}: the logits are the same")


if __name__ == "__main__":
    main()
