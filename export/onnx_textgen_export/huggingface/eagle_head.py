"""Opens the checkpoint of an EAGLE-3 draft head (Li et al. 2025) for the model that it guesses for.

It has the form of its authors (SafeAILab/EAGLE, `eagle/model/cnets.py`), or that of speculators. `eagle_modules` computes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig

from onnx_textgen.backends.signature import DRAFT_STATES, NEXT_STATES, OWN_STATES
from onnx_textgen.errors import first_line
from onnx_textgen.package.hf_settings import read_json
from onnx_textgen.package.manifest import Geometry, Target

from ..errors import ExportError
from ..sources.draft_head import EMBEDDINGS, DraftHead
from ..sources.onnx_attention import make_traced_layers, positions_from_mask
from ..sources.source import CacheTensor, Source, StatesOutput, key_value_cache
from ..weights.streamed import blocks_of
from ..weights.tensor_files import TensorFiles
from .eagle_modules import EagleHead, Sizes

OFFSETS, IS_GUESSED, OWN_TABLE = "d2t", "t2d", "embed_tokens.weight"
"""Tensors that are no parameters: the offset from each of its ids to the model's, whether it guesses each id, the model's table."""
STATES = 3
"""Layers of the model whose inputs it reads."""


def open_eagle_head(folder: Path, source: Source, *, allow_pickle: bool = False) -> DraftHead:
    """The head of a checkpoint folder for the model of `source`; raises `ExportError` for one of another form or model."""
    settings = read_json(folder / "config.json")
    files = TensorFiles(folder, allow_pickle=allow_pickle)
    names = {own_name(name): name for name in files.names()}
    if missing := [name for name in ("fc.weight", "midlayer.hidden_norm.weight", "lm_head.weight") if name not in names]:
        raise ExportError(f"{folder} has no tensor {missing[0]}; give the checkpoint of an EAGLE-3 head with one layer")
    config = read_config(settings, folder)
    vocab_size, layers = source.geometry.vocab_size, read_layers(settings, source)
    check_fits(folder, config, source, files.shape(names["fc.weight"]))
    guessed_ids = torch.arange(files.shape(names["lm_head.weight"])[0])
    if OFFSETS in names:
        if files.shape(names[OFFSETS]) != guessed_ids.shape:
            raise ExportError(f"{folder} has {OFFSETS} for other ids than its output layer; give the checkpoint again")
        guessed_ids = guessed_ids + files.read(names[OFFSETS]).long()
    if not 0 <= int(guessed_ids.min()) <= int(guessed_ids.max()) < vocab_size:
        raise ExportError(f"{folder} guesses ids outside the vocabulary of {vocab_size:,}; it is the head of another model")
    head = EagleHead(
        config,
        read_width=STATES * source.geometry.hidden_size,
        guessed_ids=guessed_ids,
        vocab_size=vocab_size,
        norm_before_residual=bool(settings.get("norm_before_residual", False)),
    )
    parameters = {
        name: files.read(stored).float() for name, stored in names.items() if name not in (OFFSETS, IS_GUESSED, OWN_TABLE)
    }
    expected = head.state_dict()
    for name in sorted({*expected, *parameters}):
        if name not in expected or name not in parameters or expected[name].shape != parameters[name].shape:
            raise ExportError(
                f"{folder} is no EAGLE-3 head of one layer: its tensor {name} is missing, unknown or of another shape"
            )
    head.load_state_dict(parameters)
    head.train(False)
    table = files.read(names[OWN_TABLE]) if OWN_TABLE in names else None
    return DraftHead(source_of(head, Sizes.of(config), source.geometry), layers, guessed_ids.tolist(), table)


def own_name(name: str) -> str:
    """A tensor's name in the authors' form.

    >>> own_name("layers.0.hidden_norm.weight"), own_name("model.norm.weight")
    ('midlayer.hidden_norm.weight', 'norm.weight')
    """
    name = name.removeprefix("model.")
    return f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name


def read_config(settings: Mapping[str, Any], folder: Path) -> LlamaConfig:
    """The sizes of the head's layer."""
    given = settings.get("transformer_layer_config", settings)
    try:
        return LlamaConfig(**{name: value for name, value in given.items() if value is not None and name != "model_type"})
    except Exception as error:  # of huggingface_hub too, whose errors have no common base
        raise ExportError(f"transformers cannot read {folder / 'config.json'}: {first_line(error)}") from error


def read_layers(settings: Mapping[str, Any], source: Source) -> tuple[int, ...]:
    """The layers of the model whose inputs the head reads: the authors' choice, unless its settings name others.

    speculators and vLLM name layers by their inputs; `eagle_config` of SGLang names those whose outputs are read.
    """
    count, name = len(blocks_of(source.module)), "eagle_aux_hidden_state_layer_ids"
    by_output = settings.get("eagle_config")
    shift, given = 0, settings.get(name)
    if not given and isinstance(by_output, Mapping):
        shift, given = 1, by_output.get(name)
    if given is not None and not (isinstance(given, list) and all(isinstance(layer, int) for layer in given)):
        raise ExportError(f"the draft head's {name} should be a list of layers, found {given!r:.60}")
    layers = tuple(layer + shift for layer in given) if given else (2, count // 2, count - 3)
    if len(layers) != STATES or not all(isinstance(layer, int) and 0 <= layer < count for layer in layers):
        raise ExportError(f"the draft head reads the inputs of the layers {list(layers)}; it needs {STATES} of the model's {count}")
    return layers


def check_fits(folder: Path, config: LlamaConfig, source: Source, shape: tuple[int, ...]) -> None:
    """Raise `ExportError` for a head of a model with other sizes."""
    width = source.geometry.hidden_size
    wanted = (config.hidden_size, STATES * width)
    if config.hidden_size != width or shape != wanted:
        raise ExportError(
            f"{folder} reads hidden states {list(shape)} and the model has {list(wanted)}; it is the head of another model"
        )


def source_of(head: EagleHead, sizes: Sizes, of_model: Geometry) -> Source:
    """The head, ready for tracing."""
    example = torch.zeros(1, sizes.kv_heads, 2, sizes.head_size)
    in_place = sizes.head_size % 8 == 0

    def call(target: Target, input_ids: Tensor, attention_mask: Tensor, pasts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        key, value, embeddings, read, own = pasts
        new = embeddings.shape[1]
        layer = make_traced_layers(target, [(key, value)], attention_mask, new, in_place=in_place)[0]
        logits: Tensor = head(embeddings, read, own, positions_from_mask(attention_mask, new), layer)
        return logits, list(layer.presents())

    def reference(ids: Tensor) -> Tensor:
        raise AssertionError("a head has no logits of ids alone")

    given = [(EMBEDDINGS, "new", sizes.width), (DRAFT_STATES, "read", head.fc.in_features), (OWN_STATES, "guessed", sizes.width)]
    return Source(
        module=head,
        call=call,
        reference=reference,
        head=head.lm_head,
        geometry=dataclasses.replace(of_model, layers=1, heads=sizes.heads, kv_heads=sizes.kv_heads, head_size=sizes.head_size),
        windows=(),
        cache=key_value_cache([(0, example, example)]),
        given=tuple(CacheTensor(name, "", ("batch", length, numbers)) for name, length, numbers in given),
        states=StatesOutput(NEXT_STATES, (head.norm,)),
    )
