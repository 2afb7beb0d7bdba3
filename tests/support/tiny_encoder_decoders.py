"""A tiny random model of any encoder-decoder type of transformers that works on text."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

VOCABULARY, CONTEXT, START, PADDING, END = 300, 256, 3, 0, 1
OTHER = (
    *("audioflamingo3", "glmasr", "granite_speech", "granite_speech_plus", "moss_transcribe_diarize", "musicflamingo"),
    *("nemo_speechlm", "omniasr", "qwen2_audio", "qwen3_asr", "vibevoice_asr", "voxtral", "voxtral_realtime"),
)
"""Types of transformers' sequence-to-sequence mapping that read audio."""
TYPES = tuple(name for name in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES if name not in OTHER)

SIZES: dict[str, int] = {
    **dict.fromkeys(("vocab_size", "src_vocab_size", "tgt_vocab_size"), VOCABULARY),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), CONTEXT),
    **dict.fromkeys(("max_encoder_position_embeddings", "max_decoder_position_embeddings"), CONTEXT),
    **dict.fromkeys(("d_model", "hidden_size"), 48),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_heads"), 6),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 6),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "d_ff"), 64),
    **dict.fromkeys(("t2u_encoder_layers", "t2u_decoder_layers", "speech_encoder_layers"), 1),
    **dict.fromkeys(("num_sparse_encoder_layers", "num_sparse_decoder_layers"), 1),
    "d_kv": 8,
    "num_experts": 4,
}
HALF = {
    **{"vocab_size": VOCABULARY, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3},
    **{"head_dim": 16, "intermediate_size": 64, "max_position_embeddings": CONTEXT, "sliding_window": 16},
}
"""Sizes of an encoder or a decoder that has a config of its own."""
EYE = {
    **{"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"image_size": 32, "patch_size": 16},
}
"""Sizes of a vision encoder, which texts do not reach."""
IDS = {"pad_token_id": PADDING, "eos_token_id": END, "decoder_start_token_id": START, "forced_eos_token_id": None}


def tiny_config(model_type: str, **changes: object) -> Any:
    """A config of that type with small sizes, but for these `changes`."""
    if model_type == "encoder-decoder":
        half = {name: value for name, value in HALF.items() if name not in ("num_key_value_heads", "head_dim", "sliding_window")}
        encoder, decoder = (
            transformers.BertConfig(**half),
            transformers.BertConfig(**half, is_decoder=True, add_cross_attention=True),
        )
        return transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    made = CONFIG_MAPPING[model_type]
    if model_type == "t5gemma":
        return made(encoder=HALF, decoder=HALF, vocab_size=VOCABULARY)
    if model_type == "t5gemma2":
        return made(encoder={"text_config": HALF, "vision_config": EYE}, decoder=HALF, vocab_size=VOCABULARY)
    fields = made().to_dict()
    sizes = {name: size for name, size in SIZES.items() if name in fields or name == "max_position_embeddings"}
    if model_type == "fsmt":
        sizes |= {"langs": ["en", "de"]}
    if model_type == "nllb-moe":
        sizes |= {"encoder_sparse_step": 2, "decoder_sparse_step": 2}
    if model_type == "led":
        sizes |= {"attention_window": [8, 8]}
    return made(**sizes | (IDS if "pad_token_id" in fields else {}) | changes)


def tiny_encoder_decoder(model_type: str, **changes: object) -> transformers.PreTrainedModel:
    """A model of that type with random weights, large enough that its greedy texts are no loops of one token."""
    config = tiny_config(model_type, **changes)
    torch.manual_seed(0)
    model = getattr(transformers, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[model_type])(config)
    model.train(False)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.25)
            else:
                parameter.add_(0.05 * torch.randn_like(parameter))
    for each in (model.config, model.generation_config):
        for name, token_id in IDS.items():
            setattr(each, name, token_id)
        each.forced_bos_token_id = None
    return model
