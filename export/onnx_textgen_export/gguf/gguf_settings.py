"""The settings of a GGUF file's architecture, `{arch}.*`: each reaches transformers' config, or is refused by name.

transformers' reader takes some of them and drops the others silently, which no comparison with transformers can show. ggml's
docs/gguf.md lists the settings; llama.cpp's `load_hparams` says what each does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig, PretrainedConfig
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

from ..errors import ExportError
from .gguf_file import GGUFFile

INSTEAD = "export the checkpoint that the file was made from"
HARMLESS = {
    "context_length": "a limit, which changes no number within it",
    "feed_forward_length": "the size of matrices, which fit no module of another size",
    "pooling_type": "of embeddings, whose pooling the caller names; logits do not depend on it",
    "rope.scaling.finetuned": "a note on the training",
    "tensor_data_layout": "how the architecture's converter lays tensors out, which transformers' reader undoes",
}
"""Settings that change no logits, and why."""
NEUTRAL: dict[str, float] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0,
    "attention.head_count": 0,  # of a model without attention
    "attention.head_count_kv": 0,
    "expert_count": 0,
    "expert_used_count": 0,
    "nextn_predict_layers": 0,
    "rope.scale_linear": 1,
    "rope.scaling.attn_factor": 1,
    "rope.scaling.factor": 1,
    "rope.scaling.yarn_attn_factor": 1,
    "rope.scaling.yarn_ext_factor": 1,
    "ssm.dt_b_c_rms": False,
}
"""Values with which a setting changes nothing."""
NAMES = {
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "layer_norm_epsilon", "norm_eps"),
    "attention.sliding_window": ("sliding_window",),
    "attention.value_length": ("head_dim",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "decoder_block_count": ("num_decoder_layers",),
    "expert_feed_forward_length": ("moe_intermediate_size", "intermediate_size"),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_weights_norm": ("norm_topk_prob",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "rope.dimension_count": ("rotary_size",),
    "rope.freq_base": ("rope_theta",),
    "rope.freq_base_swa": ("rope_theta_swa",),
    "use_parallel_residual": ("use_parallel_residual",),
    "vocab_size": ("vocab_size",),
}
"""Names of a setting in `facts`; the first one that is there counts."""
SCALING = "rope.scaling."


def make_config(file: GGUFFile, settings: dict[str, Any]) -> PretrainedConfig:
    """The config of `settings`, which transformers' reader has found; what it left out is added to them.

    Raises `ExportError` for a setting that changes numbers and that the config cannot express.
    """
    left = left_out(file, settings)
    config = AutoConfig.for_model(**settings)
    known, given = facts(config), {*config.to_dict(), "rope_theta"}
    for key, value in left.items():
        if (name := name_of(key, known)) in given and not same(value, NEUTRAL.get(key)):
            settings[name] = value
    config = AutoConfig.for_model(**settings)
    if scaling := rotary_scaling(left, getattr(config, "max_position_embeddings", 0)):
        if "rope_parameters" in settings:  # the file also has a factor for each frequency
            left[f"{SCALING}type"] = scaling["rope_type"]
        else:
            settings["rope_parameters"] = scaled(config.rope_parameters, scaling)
            config = AutoConfig.for_model(**settings)
    known = facts(config)
    for key, value in left.items():
        name = name_of(key, known)
        if not (key in HARMLESS or same(value, NEUTRAL.get(key)) or (name is not None and same(value, known[name]))):
            full = f"{file.metadata['general.architecture']}.{key}"
            raise ExportError(
                f"{file.paths[0]} sets {full} to {str(value)[:60]}, which changes numbers and cannot be given to transformers' "
                f"{config.model_type}; {INSTEAD}"
            )
    return config


def left_out(file: GGUFFile, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that transformers' reader does not use, without the architecture's prefix."""
    prefix, kind = f"{file.metadata['general.architecture']}.", settings["model_type"]
    mapping: dict[str, Any] = dict(GGUF_CONFIG_MAPPING)
    names = mapping.get(kind) or mapping.get(kind.removesuffix("_text"), {})
    used = {key for key, name in names.items() if name is not None} - {"rope.dimension_count"}  # for Llama's it is `head_dim`
    found = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    return {key: value for key, value in found.items() if key not in used}


def facts(config: PretrainedConfig) -> dict[str, Any]:
    """A config's values, and those that follow from them."""
    known: dict[str, Any] = config.to_dict()
    rotary = known.get("rope_parameters") or {}
    if heads := known.get("num_attention_heads") or known.get("num_heads") or known.get("n_head"):
        known["head_dim"] = known.get("head_dim") or known.get("d_kv") or known["hidden_size"] // heads
        known.setdefault("num_key_value_heads", heads)
    if rotary:
        whole, windowed = rotary.get("full_attention", rotary), rotary.get("sliding_attention", rotary)
        known["rope_theta"], known["rope_theta_swa"] = whole["rope_theta"], windowed["rope_theta"]
        known["rotary_size"] = known.get("rotary_dim") or int(known["head_dim"] * whole.get("partial_rotary_factor", 1))
    return known


def name_of(key: str, known: Mapping[str, Any]) -> str | None:
    """Return a config's name for a setting; None if it has none."""
    return next((name for name in NAMES.get(key, ()) if name in known), None)


def same(value: object, other: object) -> bool:
    """Return whether two values are equal in float32, which the file has."""
    if isinstance(value, int | float) and isinstance(other, int | float):
        return math.isclose(value, other, rel_tol=1e-6)
    return value == other


def rotary_scaling(left: dict[str, Any], context_length: int) -> dict[str, Any]:
    """The scaling of rotary frequencies, as transformers has it; the settings that say so are taken out of `left`."""
    kind = left.get(f"{SCALING}type", "linear")  # llama.cpp's default
    factor = left.get(f"{SCALING}factor") or 1.0
    taken = {"type", "factor", "original_context_length"}
    if kind == "none" or (kind == "linear" and same(factor, 1)):
        scaling: dict[str, Any] = {}
    elif kind == "linear":
        scaling = {"rope_type": kind, "factor": factor}
    elif kind == "yarn":
        original = left.get(f"{SCALING}original_context_length", context_length)
        scaling = {"rope_type": kind, "factor": factor, "original_max_position_embeddings": original}
        scaling["attention_factor"] = left.get(f"{SCALING}attn_factor", 1.0) * (0.1 * math.log(max(factor, 1.0)) + 1.0)
        scaling |= {name: left[f"{SCALING}yarn_{name}"] for name in ("beta_fast", "beta_slow") if f"{SCALING}yarn_{name}" in left}
        taken |= {"attn_factor", "yarn_beta_fast", "yarn_beta_slow"}
    else:
        return {}
    for name in taken:
        left.pop(f"{SCALING}{name}", None)
    return scaling


def scaled(rotary: dict[str, Any], scaling: dict[str, Any]) -> dict[str, Any]:
    """A config's rotary parameters with a scaling; layers with a window keep theirs, as in llama.cpp."""
    if "full_attention" in rotary:
        return {**rotary, "full_attention": {**rotary["full_attention"], **scaling}}
    return {**rotary, **scaling}
