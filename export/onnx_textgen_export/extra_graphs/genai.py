"""The files that let onnxruntime-genai open a package: its configuration, and a graph in the form it expects.

The engine reads `genai_config.json` and allocates logits for every token unless the graph declares one row. A package's graph
returns the rows that `logits_positions` asks for, so a second graph of some hundred kilobytes, over the same weights, fixes that
input to the last position.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnx_textgen.package.manifest import GENAI_CONFIG, GENAI_GRAPH, GENAI_TOKENIZER, GRAPH, Target

from ..sources.source import Source
from ..tokenization.text_assets import TextAssets


def opens_in_genai(source: Source, assets: TextAssets) -> bool:
    """Whether onnxruntime-genai can run the decoder: same-sized keys and values in every layer, no other state, an end token."""
    sizes = {tensor.shape for tensor in source.cache}
    names = {tensor.name for tensor in source.cache}
    layers = len(names) // 2
    wanted = {f"past_key_values.{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")}
    return bool(assets.eos_ids) and names == wanted and len(sizes) == 1 and not source.one_token and source.rotary_switch is None


def write_genai(folder: Path, source: Source, assets: TextAssets, target: Target) -> None:
    """Write the three files next to the package's own graph and weights."""
    model = ir.load(folder / GRAPH)
    graph = model.graph
    for value in list(graph.inputs):
        if value.name == "logits_positions":
            graph.inputs.remove(value)  # its default becomes a constant
    logits = next(value for value in graph.outputs if value.name == "logits")
    assert logits.shape is not None, "outputs have shapes"
    logits.shape = ir.Shape([logits.shape[0], 1, *logits.shape[2:]])
    ir.save(model, folder / GENAI_GRAPH)
    names = [str(value.name) for value in graph.inputs if not str(value.name).startswith("past_")]
    write_json(folder / GENAI_CONFIG, genai_config(source, assets, target, names))
    if assets.tokenizer is not None:
        bos = None if assets.bos_id is None else assets.tokenizer.id_to_token(assets.bos_id)
        write_json(folder / GENAI_TOKENIZER, {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos})


def genai_config(source: Source, assets: TextAssets, target: Target, names: list[str]) -> dict[str, Any]:
    """The configuration; `names`: the graph's inputs without the cache."""
    geometry = source.geometry
    (_, kv_heads, *_, head_size) = source.cache[0].shape
    past = {f"past_{kind}_names": f"past_key_values.%d.{kind}" for kind in ("key", "value")}
    present = {f"present_{kind}_names": f"present.%d.{kind}" for kind in ("key", "value")}
    return {
        "model": {
            "type": "decoder",
            "vocab_size": geometry.vocab_size,
            "context_length": geometry.context_length,
            "bos_token_id": assets.bos_id if assets.bos_id is not None else assets.eos_ids[0],
            "eos_token_id": list(assets.eos_ids),
            "pad_token_id": assets.pad_id if assets.pad_id is not None else assets.eos_ids[0],
            "decoder": {
                "filename": GENAI_GRAPH,
                "hidden_size": geometry.hidden_size,
                "num_attention_heads": geometry.heads,
                "num_key_value_heads": kv_heads,
                "num_hidden_layers": len(source.cache) // 2,
                "head_size": head_size,
                "session_options": {"provider_options": []},
                "inputs": {**{name: name for name in names}, **past},
                "outputs": {"logits": "logits", **present},
            },
        },
        "search": {
            "do_sample": False,
            "max_length": geometry.context_length,
            "past_present_share_buffer": target == "ort",
        },
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write an indented JSON file."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
