"""The settings with which other runtimes open a package: onnxruntime-genai and transformers.js.

`genai_config.json` and `config.json` both describe the graph in the folder `onnx` (see `extra_graphs.shared_graph`), and both
runtimes read `tokenizer_config.json`.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

import onnx_ir as ir

from onnx_textgen.options.maker_settings import SEARCH
from onnx_textgen.package.manifest import (
    CONFIG,
    GENAI_CONFIG,
    GENERATION_CONFIG,
    MERGED_DECODER,
    PREPROCESSOR_CONFIG,
    PROCESSOR_CONFIG,
    TOKENIZER_CONFIG,
    VISION_ENCODER_GRAPH,
    Geometry,
    ImageRecord,
    Target,
)

from ..sources.source import Source
from ..tokenization.text_assets import TextAssets

DTYPES = {"": "fp32", "_fp16": "fp16", "_quantized": "q8", "_q4": "q4", "_q4f16": "q4f16"}
"""How transformers.js calls a precision in settings, by what it looks for in the name of a graph."""
MODEL_TYPE = "llama"
"""transformers.js reads the sizes of the cache from the settings of a model type that it knows, under the names that this one has.
The graph is run by its inputs and outputs, so this says nothing of the architecture."""


LARGER_THAN_PICTURES = 1 << 24
"""With patches of as many pixels, a processor counts none."""


def write_settings(folder: Path, shared_graph: str, source: Source, assets: TextAssets, target: Target) -> None:
    """Write the settings for the graph of this name, whose weights lie next to it."""
    names = [str(value.name) for value in ir.load(folder / shared_graph).graph.inputs]
    inputs = [name for name in names if not name.startswith("past_")]
    graph = folder / shared_graph
    weights = len(list(graph.parent.glob(f"{graph.name}_data*")))
    write_json(folder / GENAI_CONFIG, genai_config(shared_graph, source, assets, target, inputs))
    write_json(folder / CONFIG, model_config(shared_graph, source, assets, weights_files=weights))
    write_json(folder / GENERATION_CONFIG, generation_config(assets))
    if assets.tokenizer is not None:
        write_json(folder / TOKENIZER_CONFIG, tokenizer_config(assets))


def write_picture_settings(folder: Path, decoder: str, assets: TextAssets, record: ImageRecord) -> None:
    """Let transformers.js open a package that reads pictures, by the decoder of this name (see `extra_graphs.picture_graphs`).

    The class of the model follows from `gemma3`, whose classes run any such graphs, with pictures and without. The processor
    returns the pixels of a file, and repeats a token once: the chat template writes all tokens of a picture.
    """
    assert assets.tokenizer is not None, "a model that reads pictures has a tokenizer"
    vision, name = PurePosixPath(VISION_ENCODER_GRAPH).name, PurePosixPath(decoder).name
    config: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    counts = {each: len(list((folder / decoder).parent.glob(f"{each}_data*"))) for each in (vision, name)}
    precisions = {"embed_tokens": "fp32", "vision_encoder": "fp32", MERGED_DECODER: dtype_of(name)}
    outer = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "image_token_index": record.token_id,
        "transformers.js_config": {"dtype": precisions, "use_external_data_format": counts},
    }
    inner = {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
    text = {key: value for key, value in config.items() if key != "transformers.js_config"} | inner
    ids = {key: value for key, value in config.items() if key.endswith("_token_id")}
    write_json(folder / CONFIG, outer | ids | {"text_config": text})
    steps = ("resize", "rescale", "normalize", "center_crop", "pad")
    images = {"image_processor_type": "CLIPImageProcessor", "do_convert_rgb": True, **{f"do_{step}": False for step in steps}}
    write_json(folder / PREPROCESSOR_CONFIG, {"processor_class": "LlavaProcessor", **images})
    token = {"image_token": assets.tokenizer.id_to_token(record.token_id), "num_additional_image_tokens": 1}
    write_json(folder / PROCESSOR_CONFIG, {"processor_class": "LlavaProcessor", "patch_size": LARGER_THAN_PICTURES, **token})
    if assets.chat_template is not None:
        write_json(
            folder / TOKENIZER_CONFIG, tokenizer_config(assets) | {"chat_template": with_image_tokens(assets.chat_template, record)}
        )


def with_image_tokens(template: str, record: ImageRecord) -> str:
    """A chat template whose text has all tokens of each picture. Its source is left alone: quotes and line breaks would change it.

    A line break after a tag of a template does not count, and neither does one at the end. What a message itself writes like a
    picture's place is replaced too.
    """
    place, whole = (json.dumps(text, ensure_ascii=False) for text in (record.placeholder, record.expansion))
    written = "{% set written %}\n" + template.removesuffix("\n") + "{% endset %}"
    return written + "{{ written | replace(" + f"{place}, {whole}" + ") }}"


def write_seq2seq_settings(folder: Path, precision_suffix: str, source: Source, assets: TextAssets) -> None:
    """Write the settings by which transformers.js opens an encoder-decoder; its graphs end with `precision_suffix`."""
    assert source.encoder is not None, "the caller has looked"
    begin, *forced = source.encoder.start_ids
    ids = {"decoder_start_token_id": begin, "forced_bos_token_id": forced[0] if forced else None}
    excluded = (
        {"bad_words_ids": [[token_id] for token_id in source.encoder.suppressed_ids]} if source.encoder.suppressed_ids else {}
    )
    write_json(folder / CONFIG, seq2seq_config(DTYPES[precision_suffix], source, assets) | ids)
    write_json(folder / GENERATION_CONFIG, generation_config(assets) | ids | excluded)
    if assets.tokenizer is not None:
        write_json(folder / TOKENIZER_CONFIG, {**tokenizer_config(assets), "add_bos_token": False})


def write_text_encoder_settings(
    folder: Path, shared_graph: str, geometry: Geometry, assets: TextAssets, *, most_tokens: int, scores: bool
) -> None:
    """Write the settings by which transformers.js opens a text encoder, whose graph has this name; `scores`: it scores pairs.

    Its class follows from `model_type`, and the graph is run by its inputs: `bert` says nothing of the architecture. Only BERT's
    tokenizer returns there the types of tokens, which the graph may take.
    """
    name = PurePosixPath(shared_graph).name
    weights = len(list((folder / shared_graph).parent.glob(f"{name}_data*")))
    config = {
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification" if scores else "BertModel"],
        "hidden_size": geometry.hidden_size,
        "vocab_size": geometry.vocab_size,
        "max_position_embeddings": geometry.context_length,
        "pad_token_id": assets.pad_id,
        **({"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}} if scores else {}),
        "transformers.js_config": {"dtype": dtype_of(name), "use_external_data_format": {name: weights}},
    }
    write_json(folder / CONFIG, config)
    if assets.tokenizer is not None:
        pad = None if assets.pad_id is None else assets.tokenizer.id_to_token(assets.pad_id)
        kind = "BertTokenizer" if scores else "PreTrainedTokenizerFast"
        write_json(folder / TOKENIZER_CONFIG, {"tokenizer_class": kind, "pad_token": pad, "model_max_length": most_tokens})


def dtype_of(name: str) -> str:
    """How transformers.js calls the precision of a graph of this name."""
    return DTYPES[name.removeprefix(MERGED_DECODER).removeprefix("model").removesuffix(".onnx")]


def seq2seq_config(dtype: str, source: Source, assets: TextAssets) -> dict[str, Any]:
    """The settings of an encoder-decoder for transformers.js: the cache, whose names are those of its `t5`."""
    geometry, layers = source.geometry, len(source.cache) // 2
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "num_heads": source.cache[0].shape[1],
        "d_kv": geometry.head_size,
        "d_model": geometry.hidden_size,
        "vocab_size": geometry.vocab_size,
        "max_position_embeddings": geometry.context_length,
        "eos_token_id": list(assets.eos_ids),
        "pad_token_id": assets.pad_id,
        "transformers.js_config": {"dtype": dtype},
    }


def genai_config(shared_graph: str, source: Source, assets: TextAssets, target: Target, inputs: list[str]) -> dict[str, Any]:
    """The settings for onnxruntime-genai; `inputs`: the names of the graph's inputs without the cache."""
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
                "filename": shared_graph,
                "hidden_size": geometry.hidden_size,
                "num_attention_heads": geometry.heads,
                "num_key_value_heads": kv_heads,
                "num_hidden_layers": len(source.cache) // 2,
                "head_size": head_size,
                "session_options": {"provider_options": []},
                "inputs": {**{name: name for name in inputs}, **past},
                "outputs": {"logits": "logits", **present},
            },
        },
        "search": {
            "do_sample": False,
            "max_length": geometry.context_length,
            "past_present_share_buffer": target == "ort",
        },
    }


def model_config(shared_graph: str, source: Source, assets: TextAssets, *, weights_files: int) -> dict[str, Any]:
    """The settings for transformers.js, see src/configs.js and src/models/session.js there: the cache, and the files to load."""
    geometry, name = source.geometry, PurePosixPath(shared_graph).name
    (_, kv_heads, *_, head_size) = source.cache[0].shape
    return {
        "model_type": MODEL_TYPE,
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": len(source.cache) // 2,
        "num_attention_heads": geometry.heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_size,
        "hidden_size": geometry.hidden_size,
        "vocab_size": geometry.vocab_size,
        "max_position_embeddings": geometry.context_length,
        "bos_token_id": assets.bos_id,
        "eos_token_id": list(assets.eos_ids),
        "pad_token_id": assets.pad_id,
        "transformers.js_config": {"dtype": dtype_of(name), "use_external_data_format": {name: weights_files}},
    }


def generation_config(assets: TextAssets) -> dict[str, Any]:
    """Special ids, and the makers' defaults except for a search, which these runtimes do not have."""
    is_sampled = assets.generation.get("temperature", 0) > 0
    ids = {"bos_token_id": assets.bos_id, "eos_token_id": list(assets.eos_ids), "pad_token_id": assets.pad_id}
    names = assets.generation.keys() - {*SEARCH, "stop", *(() if is_sampled else ("temperature",))}
    return {**ids, "do_sample": is_sampled, **{name: assets.generation[name] for name in assets.generation if name in names}}


def tokenizer_config(assets: TextAssets) -> dict[str, Any]:
    """Return the settings that both runtimes read besides `tokenizer.json`; transformers.js reads the chat template only here."""
    assert assets.tokenizer is not None, "the caller has looked"
    ids = {"bos_token": assets.bos_id, "eos_token": next(iter(assets.eos_ids), None), "pad_token": assets.pad_id}
    tokens = {name: None if each is None else assets.tokenizer.id_to_token(each) for name, each in ids.items()}
    if assets.chat_template is not None:
        text: dict[str, Any] = {"chat_template": assets.chat_template}  # which writes the begin token itself
    else:
        text = {"add_bos_token": bool(assets.tokenizer.encode("").ids)}
    return {"tokenizer_class": "PreTrainedTokenizerFast", **tokens, **text}


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write an indented JSON file."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
