"""Descriptions of models for Ollama's clients."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from onnx_textgen import Model
from onnx_textgen.backends.signature import HIDDEN_STATES


def as_time(seconds: int) -> str:
    """A time of the clock as Ollama writes it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat().replace("+00:00", "Z")


def details_of(about: Mapping[str, Any]) -> dict[str, Any]:
    """The `details` of a model; `about`: its entry in `/v1/models`."""
    return {
        "parent_model": about.get("parent", ""),
        "format": "onnx",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": about["precision"],
    }


def entry(about: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of a model in `/api/tags`. What `/v1/models` does not know is empty or 0."""
    name = about["id"]
    return {
        "name": name,
        "model": name,
        "modified_at": as_time(about["created"]),
        "size": about["size_bytes"],
        "digest": about["digest"],
        "details": details_of(about),
    }


def running(about: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of a model in `/api/ps`."""
    return entry(about) | {"size_vram": 0, "context_length": about["max_model_len"]}


def capabilities_of(model: Model) -> list[str]:
    """Return a model's capabilities, in Ollama's words, which has none for a cross-encoder's."""
    if model.manifest.text_encoder is not None:
        return ["embedding"] if model.manifest.pair_scoring is None else []
    found = {
        "completion": True,
        "tools": model.chats.calls_tools,
        "vision": model.manifest.images is not None,
        "thinking": model.chats.thinks,
        "embedding": model.graph.name_of(HIDDEN_STATES) in model.graph.outputs,
        "insert": model.generator.opened.has_tokenizer and model.tokenizer.infill is not None,
    }
    return [name for name, can in found.items() if can]


def show(about: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """The answer to `/api/show`."""
    geometry = model.manifest.geometry
    return {
        "modelfile": "",
        "parameters": "\n".join(f"{name} {value}" for name, value in model.manifest.generation.items()),
        "template": model.chat_template or "",
        "size": about["size_bytes"],
        "digest": about["digest"],
        "details": details_of(about),
        "model_info": {
            "general.architecture": "onnx",
            "general.basename": model.manifest.name,
            "onnx.context_length": geometry.context_length,
            "onnx.embedding_length": geometry.hidden_size,
            "onnx.block_count": geometry.layers,
            "onnx.attention.head_count": geometry.heads,
            "onnx.attention.head_count_kv": geometry.kv_heads,
            "onnx.vocab_size": geometry.vocab_size,
        },
        "capabilities": capabilities_of(model),
        "modified_at": as_time(about["created"]),
    }
