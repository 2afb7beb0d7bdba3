"""A tiny random model of any model type of transformers, for the table of architectures and its tests.

Sizes are set by the names that configs use for them, so that a new model type usually needs nothing here; `SPECIAL` holds what
cannot be guessed. Grouped heads, an odd number of them, a window shorter than the texts, and every kind of layer occur where the
type knows them.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY, CONTEXT, WINDOW, LAYERS = 300, 256, 16, 2
MOST_KINDS = 4
"""A list with more different entries than this is no list of kinds of layers."""

SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "decoder_vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_target_positions"), CONTEXT),
    **dict.fromkeys(("model_max_length", "context_length", "max_sequence_length"), CONTEXT),
    **dict.fromkeys(("sliding_window", "window_size", "attention_chunk_size", "sliding_window_size", "local_attention"), WINDOW),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "emb_dim", "embedding_size", "embedding_dim", "dim_model"), 48),
    **dict.fromkeys(("intermediate_size", "n_inner", "d_inner", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "dim_ff"), 64),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size", "shared_expert_intermediate_size", "d_ff"), 32),
    **dict.fromkeys(("shared_intermediate_size", "dense_intermediate_size", "intermediate_size_mlp", "ffn_hidden_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "attention_heads", "decoder_attention_heads"), 6),
    **dict.fromkeys(("encoder_attention_heads", "swa_num_attention_heads"), 6),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads"), 3),
    **dict.fromkeys(("head_dim", "swa_head_dim", "kv_channels", "attention_head_dim", "d_head", "dim_head"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "num_experts_per_token", "top_k_experts"), 2),
    **dict.fromkeys(("num_shared_experts", "n_shared_experts", "moe_num_shared_experts", "num_dense_layers"), 1),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "first_k_dense_replace"), 1),
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "rotary_dim": 4,
    "query_pre_attn_scalar": 16,
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads"), 6),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 16),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size", "mamba_chunk_size", "chunk_size"), 8),
    **dict.fromkeys(("mamba_dt_rank", "time_step_rank"), 4),
    **dict.fromkeys(("mamba_n_groups", "mamba_ngroups"), 1),
    **dict.fromkeys(("linear_num_key_heads",), 2),
    **dict.fromkeys(("linear_num_value_heads",), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("hidden_size_per_layer_input", "laurel_rank"), 8),
    **dict.fromkeys(("index_head_dim", "index_topk"), 8),
    "index_n_heads": 16,
    "original_max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "is_decoder": True,
    "use_mamba_kernels": False,
}
"""Size by the name of a config's field, set where the config has such a field."""

PADDED = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
NEED_PADDING = (
    *("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "cwm", "emu3"),
    *("mllama", "modernbert-decoder", "gemma4", "gemma4_unified"),
)
KINDS = ("full_attention", "sliding_attention")
SPECIAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(NEED_PADDING, PADDED),
    "bamba": {"num_hidden_layers": 3, "attn_layer_indices": [1]},
    "codegen": {"n_head": 4},
    "cohere_compass_text": {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in KINDS}},
    "dbrx": {
        "attn_config": {"kv_n_heads": 3, "clip_qkv": 8, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "diffllama": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "dots3_note": {"num_key_value_heads": 6},
    "dots3_note_text": {"num_key_value_heads": 6},
    "falcon_h1": {"mamba_d_ssm": 96},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": [64] * 4,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
        "num_kv_shared_layers": 2,
    },
    "granitemoehybrid": {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "helium": {"head_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": 3},
    "laguna": {"layer_types": list(KINDS), "num_attention_heads_per_layer": [6, 6]},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3},
    "longcat_flash": {"head_dim": 8},
    "mamba2": {"num_heads": 6, "head_dim": 16, "n_groups": 1},
    "mellum": {"layer_types": list(KINDS)},
    "nemotron_h": {"n_groups": 1, "moe_shared_expert_intermediate_size": 32},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_embds_dim": [16, 32], "axial_pos_shape": [16, 16], "attention_head_size": 8},
    "prophetnet": PADDED | {"num_decoder_layers": 2, "num_decoder_attention_heads": 6, "num_encoder_layers": 1},
    "qwen4_exp_text": {
        "indexer_n_heads": 3,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "xlm": PADDED | {"causal": True, "use_lang_emb": False},
    "xlnet": {"d_head": 8},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128, "num_heads": 4},
    "xmod": PADDED | {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
"""What a type needs beyond `SIZES`."""

OTHER: dict[str, str] = {
    **dict.fromkeys(("musicgen", "musicgen_melody"), "makes audio: its decoder reads codes of several codebooks"),
    "git": "describes images: its text decoder works behind an image encoder",
    "blt": "reads bytes in patches that an entropy model of its own cuts",
    **dict.fromkeys(("moss_transcribe_diarize", "whisper"), "transcribes audio"),
    "trocr": "transcribes images",
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), "drafts for another model, whose hidden states it reads"),
    "dots3_note": "reads images of notes; its text part is dots3_note_text",
}
"""Types that are no decoder of text alone, and how that was decided."""


def per_layer(values: list[Any], layers: int) -> list[Any]:
    """A list that holds something for every layer, cut to `layers` with every kind in it."""
    kinds = list(dict.fromkeys(values))
    return [kinds[index % len(kinds)] for index in range(layers)]


def shrink(config: Any, special: dict[str, Any]) -> dict[str, Any]:
    """The fields of a config that make it tiny."""
    fields = config.to_dict()
    aliases: dict[str, str] = getattr(config, "attribute_map", {})
    named = set(fields) | {name for name, target in aliases.items() if target not in SIZES}
    depth = next((fields[name] for name in ("num_hidden_layers", "n_layer", "num_layers") if name in fields), None)
    lists = {
        name: value
        for name, value in fields.items()
        if isinstance(value, (list, tuple)) and isinstance(depth, int) and len(value) == depth and depth > 1
    }
    lists = {name: value for name, value in lists.items() if len(set(map(str, value))) <= MOST_KINDS}
    kinds = max([LAYERS, *(len(set(map(str, value))) for value in lists.values())])
    layers = special.get("num_hidden_layers", kinds if kinds == LAYERS else kinds + 1)
    small = {name: value for name, value in SIZES.items() if name in named and not (name in fields and name in lists)}
    small = {
        name: layers if value == LAYERS and "layer" in name and name != "num_dense_layers" else value
        for name, value in small.items()
    }
    small |= {
        name: per_layer(list(value), layers) for name, value in lists.items() if all(isinstance(v, (str, bool)) for v in value)
    }
    for name in ("sliding_window", "n_inner", "q_lora_rank"):
        if name in fields and fields[name] is None:
            small.pop(name, None)
    if "kv_lora_rank" in fields:  # latent attention: every head has keys of its own, and head_dim follows from the parts
        small.pop("head_dim", None)
        small |= {"num_key_value_heads": 6} if "num_key_value_heads" in fields else {}
    return small | special


def tiny_config(model_type: str) -> Any:
    """A tiny config of a model type."""
    special = SPECIAL.get(model_type, {})
    config_class = CONFIG_MAPPING[model_type]
    default = config_class()
    text = default if default.is_encoder_decoder else default.get_text_config(decoder=True)
    if text is default:
        return config_class(**shrink(default, special))
    inner = next(name for name in ("text_config", "thinker_config", "decoder") if getattr(default, name, None) is text)
    special = SPECIAL.get(text.model_type, {}) | special
    return config_class(**{inner: type(text)(**shrink(text, special)).to_dict()})


def tiny_model(model_type: str, *, seed: int = 0) -> transformers.PreTrainedModel:
    """A random model whose logits are far enough apart for greedy tokens to mean something."""
    torch.manual_seed(seed)
    config = tiny_config(model_type)
    model_class = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])
    if not hasattr(model_class, "_from_config"):
        raise TypeError(f"{model_class.__name__} is no model of transformers")
    if model_class.config_class is not None and not isinstance(config, model_class.config_class):
        config = config.get_text_config()
    model = model_class._from_config(config, attn_implementation="eager").eval().float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "conv" not in name:
                parameter.normal_(std=0.15)
    with contextlib.suppress(AttributeError):
        model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    return model


def not_a_text_decoder(model_type: str) -> str:
    """Why a type of the causal-LM mapping is no decoder of text alone, or nothing."""
    return OTHER.get(model_type, "")
