"""Reads what sentence-transformers stores of an embedding model or a reranker: its modules, their settings, its prompts.

`modules.json` lists the modules in their order: the model itself, then `Pooling` and perhaps `Normalize`, or `LogitScore`. What a
package cannot compute is written into the settings as a reason, so that no other vector or score is taken for the model's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_textgen.errors import TemplateError
from onnx_textgen.files import text_files
from onnx_textgen.package.hf_settings import read_json, without_nulls
from onnx_textgen.package.retrieval import EmbeddingSettings, Pooling, RerankingSettings, messages_of
from onnx_textgen.text.chat_template import render_chat

MODULES = "modules.json"
MODEL_SETTINGS = "sentence_bert_config.json"
GENERAL_SETTINGS = "config_sentence_transformers.json"
POOLING: Mapping[str, Pooling] = {"mean": "mean", "weightedmean": "weightedmean", "lasttoken": "last"}
"""The poolings that a decoder can give, by their names in sentence-transformers."""
OLD_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Poolings by the names of the switches that older versions wrote."""
PARTS = ("content[0]", ".type", "'type'", '"type"', "message.content[")
"""Where sentence-transformers sees that a chat template takes the content of a message as a list of parts."""


def read_retrieval_settings(folder: Path, chat_template: str | None) -> tuple[EmbeddingSettings | None, RerankingSettings | None]:
    """How the model of a checkpoint folder embeds and reranks; None for what it does not do.

    Raises `PackageError` for settings that are not JSON.
    """
    modules = read_modules(folder)
    kinds = [kind for kind, _ in modules]
    if "Pooling" in kinds:
        return read_embedding(folder, modules), None
    if "LogitScore" in kinds:
        return None, read_reranking(folder, modules, chat_template)
    return None, None


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """The classes of the modules without their packages, and their folders; empty if the folder lists none."""
    if not (folder / MODULES).is_file():
        return []
    listed = text_files.read_json(folder / MODULES)
    entries = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, Sequence) else []
    return [(str(each.get("type", "")).rpartition(".")[2], folder / Path(str(each.get("path", ""))).name) for each in entries]


def read_embedding(folder: Path, modules: Sequence[tuple[str, Path]]) -> EmbeddingSettings:
    """The settings of a model with a pooling."""
    kinds, general = [kind for kind, _ in modules], without_nulls(read_json(folder / GENERAL_SETTINGS))
    pooling = read_json(dict(modules)["Pooling"] / "config.json")
    modes = pooling_modes(pooling)
    dimensions, similarity = general.get("truncate_dim"), general.get("similarity_fn_name")
    return EmbeddingSettings(
        pooling=POOLING.get(modes[0], "mean") if modes else "mean",
        normalize=kinds[-1] == "Normalize",
        dimensions=dimensions if isinstance(dimensions, int) else None,
        similarity=similarity if isinstance(similarity, str) else None,
        refused=refusal_of_embedding(kinds, modes, pooling) or refusal_of_model(read_json(folder / MODEL_SETTINGS), "text"),
        **prompts_of(general),
    )


def pooling_modes(settings: Mapping[str, Any]) -> list[str]:
    """The names of the poolings; more than one if their vectors are joined."""
    if (given := settings.get("pooling_mode")) is not None:
        return [str(each) for each in (given if isinstance(given, list) else [given])]
    return [name for switch, name in OLD_POOLING.items() if settings.get(switch)] or (["mean"] if settings else [])


def refusal_of_embedding(kinds: Sequence[str], modes: Sequence[str], pooling: Mapping[str, Any]) -> str:
    """Why a package cannot give the vectors of these modules; empty if it can."""
    if [kind for kind in kinds if kind != "Normalize"] != ["Transformer", "Pooling"] or "Normalize" in kinds[:-1]:
        return f"its modules are {', '.join(kinds)}"
    if not modes:
        return "the settings of its pooling are missing"
    if len(modes) > 1 or modes[0] not in POOLING:
        return f"its pooling is {' and '.join(modes)}"
    return "" if pooling.get("include_prompt", True) else "its pooling leaves out the tokens of the prompt"


def refusal_of_model(settings: Mapping[str, Any], form: str) -> str:
    """Why texts in this form (`text`, or `message` for the chat template) are not what the model takes; empty if they are."""
    forms = settings.get("modality_config")
    if settings.get("do_lower_case"):
        return "it takes texts in lower case only"
    if isinstance(forms, Mapping):  # older versions, which write none, take texts only
        taken = "message" if "message" in forms else "text"
        return "" if taken == form else f"it takes {'chats' if taken == 'message' else 'pairs of texts'}"
    return "" if form == "text" else "it takes pairs of texts"


def read_reranking(folder: Path, modules: Sequence[tuple[str, Path]], chat_template: str | None) -> RerankingSettings | None:
    """The settings of a model whose logits are scores; None if they name no token."""
    general, model = without_nulls(read_json(folder / GENERAL_SETTINGS)), read_json(folder / MODEL_SETTINGS)
    score, kinds = read_json(dict(modules)["LogitScore"] / "config.json"), [kind for kind, _ in modules]
    true_id, false_id = score.get("true_token_id"), score.get("false_token_id")
    if not isinstance(true_id, int):
        return None
    activation = str(general.get("activation_fn", "torch.nn.modules.activation.Sigmoid"))
    is_identity = activation.endswith(".Identity")
    template_settings = (model.get("processing_kwargs") or {}).get("chat_template") or {}
    settings = RerankingSettings(
        true_id=true_id,
        false_id=false_id if isinstance(false_id, int) else None,
        activation="identity" if is_identity else "sigmoid",
        add_generation_prompt=bool(template_settings.get("add_generation_prompt", False)),
        has_parts=takes_parts(model, chat_template or ""),
        **prompts_of(general),
    )
    reasons = (
        "" if kinds == ["Transformer", "LogitScore"] else f"its modules are {', '.join(kinds)}",
        "" if activation.startswith("torch.nn.") and (is_identity or activation.endswith(".Sigmoid")) else f"it uses {activation}",
        refusal_of_model(model, "message"),
        refusal_of_template(settings, chat_template),
    )
    return dataclasses.replace(settings, refused=next(filter(None, reasons), ""))


def takes_parts(model: Mapping[str, Any], chat_template: str) -> bool:
    """Return whether the messages of a query and a document have lists of parts as their content."""
    form = ((model.get("modality_config") or {}).get("message") or {}).get("format", "auto")
    return any(mark in chat_template for mark in PARTS) if form == "auto" else form == "structured"


def refusal_of_template(settings: RerankingSettings, chat_template: str | None) -> str:
    """Why a chat template cannot show a query and a document to the model; empty if it can."""
    if chat_template is None:
        return "it has no chat template"
    try:
        shown = render_chat(chat_template, messages_of(settings, "alpha", "bravo"), bos_token="", eos_token="")
    except TemplateError as error:
        return f"its chat template fails on a query and a document: {error}"
    return "" if "alpha" in shown and "bravo" in shown else "its chat template shows no query and document"


def prompts_of(general: Mapping[str, Any]) -> dict[str, Any]:
    """The prompts with a text, and the name of the one that applies by default."""
    prompts = general.get("prompts")
    named = {str(name): text for name, text in prompts.items() if isinstance(text, str)} if isinstance(prompts, Mapping) else {}
    default = general.get("default_prompt_name")
    return {"prompts": named, "default_prompt_name": default if default in named else None}
