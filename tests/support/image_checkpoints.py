"""Tiny random checkpoints of models that read pictures, with the processors of their types.

Sizes are set by the names that configs use for them; `PROCESSORS` has the settings of the processors, and what else a type needs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models
from transformers.models.auto import processing_auto
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

from support.tiny_models import SPECIAL, shrink

SIDE, PATCH = 28, 7
SQUARE = {"size": {"height": SIDE, "width": SIDE}}
CROPPED = {"size": {"shortest_edge": SIDE}, "crop_size": SQUARE["size"]}
PATCHES = {"size": {"shortest_edge": 4 * 14 * 14, "longest_edge": 60 * 14 * 14}, "patch_size": PATCH, "merge_size": 2}
LONGEST = {"size": {"longest_edge": 3 * SIDE - 8}, "max_image_size": {"longest_edge": SIDE}}
TOKENS = {
    **dict.fromkeys(("image_token", "context_image_token"), "<image>"),
    **dict.fromkeys(("boi_token", "image_start_token", "start_image_token"), "<boi>"),
    **dict.fromkeys(("eoi_token", "image_end_token", "end_image_token"), "<eoi>"),
    **dict.fromkeys(("image_boundary_token", "fake_image_token"), "<fake_token_around_image>"),
    "image_break_token": "<break>",
    "img_patch_token": "<|IMG_PATCH|>",
    "video_token": "<video>",
    "global_image_token": "<global-img>",
    **{f"row_{row}_col_{column}": f"<row_{row}_col_{column}>" for row in (1, 2, 3) for column in (1, 2, 3)},
}
VISION: dict[str, Any] = {
    **{"image_size": SIDE, "patch_size": PATCH, "num_channels": 3, "depth": 2, "embed_dim": 32, "out_hidden_size": 48},
    **{"num_attention_heads": 4, "num_heads": 4, "attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "mlp_ratio": 2},
    "hidden_size": 32,
    "deepstack_visual_indexes": [0, 1],
    **{"projection_dim": 48, "output_dim": 48, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 16},
}
MROPE = ("paddleocr_vl_text",)
"""Text parts with positions on three axes, whose configs do not say so."""
OUTER: dict[str, Any] = {
    **{"boi_token_index": 292, "eoi_token_index": 293, "mm_tokens_per_image": 4, "image_seq_length": 16, "pad_token_id": 0},
    **{"hidden_size": 48, "projection_dim": 48, "projector_hidden_size": 48, "scale_factor": 2, "downsample_factor": 2},
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a type needs."""

    images: Mapping[str, Any]
    """Settings of its image processor."""
    processor: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    change: Callable[[Any, Any], None] = lambda config, tokenizer: None
    like: str = ""
    """The type whose image processor it takes, if it has none of its own."""


def by_patches(config: Any, tokenizer: Any) -> None:
    config.image_token_id = tokenizer.convert_tokens_to_ids("<|IMG_PATCH|>")


def two_layers(config: Any, tokenizer: Any) -> None:
    config.vision_feature_layers = [-1, -2]


def one_width(config: Any, tokenizer: Any) -> None:
    config.vision_config.hidden_size = config.text_config.hidden_size  # what other types call out_hidden_size


def windowed(config: Any, tokenizer: Any) -> None:
    config.vision_config.window_size = 2 * 14  # two tokens down and across
    config.vision_config.fullatt_block_indexes = [1]


def near(config: Any, tokenizer: Any) -> None:
    config.text_config.sliding_window = 6  # shorter than a text around a picture, longer than a picture


LLAVA = {"patch_size": PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
MISTRAL = {
    **{"patch_size": PATCH, "spatial_merge_size": 2},
    **{"image_token": "<image>", "image_break_token": "<break>", "image_end_token": "<eoi>"},
}
KINDS: dict[str, Kind] = {
    "aya_vision": Kind(SQUARE, {"patch_size": PATCH, "img_size": SIDE, "downsample_factor": 2}, by_patches),
    "deepseek_vl": Kind(SQUARE, {"num_image_tokens": 16}),
    "exaone4_5": Kind(PATCHES, {}, windowed),
    "gemma3": Kind(SQUARE, {"image_seq_length": 4}, near),
    "glm46v": Kind(PATCHES),
    "glm4v": Kind(PATCHES),
    "got_ocr2": Kind(SQUARE),
    "hyperclovax_vision_v2": Kind(PATCHES),
    "idefics3": Kind(LONGEST, {"image_seq_len": 4}),
    "internvl": Kind(SQUARE, {"image_seq_length": 4}),
    "janus": Kind(SQUARE, {"num_image_tokens": 16}),
    "lfm3_vl": Kind(PATCHES),
    "lighton_ocr": Kind({"size": {"longest_edge": 112}, "patch_size": 2 * PATCH}, {"patch_size": PATCH, "spatial_merge_size": 2}),
    "llava": Kind(CROPPED, LLAVA),
    "mistral3": Kind({"size": {"longest_edge": 112}, "patch_size": PATCH}, MISTRAL),
    "paddleocr_vl": Kind(PATCHES),
    "qwen2_5_vl": Kind(PATCHES, {}, windowed),
    "qwen2_vl": Kind(PATCHES, {}, one_width),
    "qwen3_5": Kind(PATCHES),
    "qwen3_5_moe": Kind(PATCHES, like="qwen2_vl"),
    "qwen3_vl": Kind(PATCHES),
    "qwen3_vl_moe": Kind(PATCHES, like="qwen2_vl"),
    "smolvlm": Kind(LONGEST, {"image_seq_len": 4}),
    "video_llama_3": Kind(PATCHES),
    "vipllava": Kind(CROPPED, LLAVA, two_layers),
}
"""Types that are exported."""
ALIKE = (
    "aya_vision",
    "deepseek_vl",
    "exaone4_5",
    "glm46v",
    "got_ocr2",
    "hyperclovax_vision_v2",
    "idefics3",
    "janus",
    "paddleocr_vl",
    "qwen2_vl",
    "qwen3_5_moe",
    "qwen3_vl_moe",
    "video_llama_3",
    "vipllava",
)
"""Types that read pictures as others of these do: their test takes 10 seconds each, and runs with those of further types."""
REFUSED: dict[str, tuple[Kind, str]] = {
    "llava_next": (Kind(CROPPED | {"image_grid_pinpoints": [[SIDE, SIDE]]}, LLAVA), "other numbers of tokens"),
    "idefics2": (Kind({}), "other shapes"),
}
"""Types that are not exported yet, and what the line says."""


def tiny_config(model_type: str) -> Any:
    """A tiny config of a model type that reads pictures."""
    config_class = transformers.CONFIG_MAPPING[model_type]
    default, parts = config_class(), dict[str, Any]()
    text = default.get_text_config(decoder=True)
    for name, part in vars(default).items():
        if not isinstance(part, transformers.PretrainedConfig):
            continue
        fields = shrink(part, SPECIAL.get(part.model_type, {}))
        if part is not text:
            known = set(part.to_dict()) | set(getattr(part, "attribute_map", {}))
            fields = {key: value for key, value in fields.items() if key != "vocab_size"}
            fields |= {key: value for key, value in VISION.items() if key in known}
        if "mrope_section" in getattr(part, "ignore_keys_at_rope_validation", ()) or part.model_type in MROPE:
            size = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
            own = dict(part.rope_parameters or {})
            half = int(size * own.get("partial_rotary_factor", 1)) // 2
            sections = [half - 2 * (half // 3), half // 3, half // 3]
            fields["rope_parameters"] = own | {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections}
        parts[name] = type(part)(**fields).to_dict() | {"model_type": part.model_type}
    known = set(default.to_dict())
    return config_class(**parts, **{key: value for key, value in OUTER.items() if key in known})


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token a byte, and the special tokens of all types."""
    plain = Tokenizer(models.BPE(vocab={f"<0x{byte:02X}>": byte for byte in range(256)}, merges=[], byte_fallback=True))
    plain.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, extra_special_tokens=TOKENS, pad_token="<pad>")


def write_checkpoint(model_type: str, folder: Path, kind: Kind, *, deviation: float = 0.15) -> transformers.PreTrainedModel:
    """Write a random checkpoint with its processor; returns the model. `deviation`: of the weights, less for wide layers."""
    config, words = tiny_config(model_type), tokenizer()
    for name in ("image_token_id", "image_token_index"):
        if hasattr(config, name):
            setattr(config, name, words.convert_tokens_to_ids("<image>"))
    kind.change(config, words)
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval().float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "conv" not in name and "patch" not in name:
                parameter.normal_(std=deviation)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    model.save_pretrained(folder)
    own = kind.like or model_type
    names = IMAGE_PROCESSOR_MAPPING_NAMES.get(own) or IMAGE_PROCESSOR_MAPPING_NAMES[config.vision_config.model_type]
    getattr(transformers, names["pil"])(**kind.images).save_pretrained(folder)
    words.save_pretrained(folder)
    named = {"processor_class": processing_auto.PROCESSOR_MAPPING_NAMES[model_type]}
    (folder / "processor_config.json").write_text(json.dumps(dict(kind.processor) | named), encoding="utf-8")
    return model


def noise(height: int, width: int, seed: int = 0) -> Any:
    """A picture of noise."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
