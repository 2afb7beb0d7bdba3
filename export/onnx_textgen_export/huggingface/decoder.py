"""A transformers causal language model as a `Source`; `path_choice` decides how its attention is traced."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from ..errors import ExportError
from ..layers.eager_attention import probe_cache
from ..layers.rotary_scaling import check_dynamic, switch_of
from ..sources.source import NO_LENGTH, Source, make_geometry
from .attention_paths import FusedAttentionPath
from .path_choice import choose_path
from .probed_model import Model, attention_as


def run_with_head(model: PreTrainedModel, run: Callable[[], Tensor]) -> tuple[Tensor, nn.Module | None]:
    """Logits, and the layer that computes them if it is called once and with every position."""
    head = cast("nn.Module | None", cast(Any, model).get_output_embeddings())
    seen: list[tuple[int, ...]] = []
    with contextlib.ExitStack() as stack, torch.no_grad():
        if head is not None:
            note = head.register_forward_hook(lambda _, args, output: seen.append((*args[0].shape[:2], output.shape[-1])))
            stack.callback(note.remove)
        logits = run()
    return logits, head if seen == [tuple(logits.shape)] else None


def length_in(config: PretrainedConfig) -> int | None:
    """The context length that a config names; None if it names none."""
    names = ("max_position_embeddings", "max_seq_len", "model_max_length", "seq_length", "context_length", "n_positions")
    for name in (*names, "max_target_positions"):
        if isinstance(length := getattr(config, name, None), int):
            return length
    return None


def declared_length(config: PretrainedConfig) -> int:
    """The context length that a decoder's config names; raises `ExportError` if it names none."""
    if (length := length_in(config)) is None:
        raise ExportError(f"{config.model_type} {NO_LENGTH}")
    return length


def source_from_decoder(model: PreTrainedModel, *, context_length: int | None = None) -> Source:
    """A source from a transformers causal language model."""
    config = model.config.get_text_config(decoder=True)
    length = context_length or declared_length(config)

    def reference(ids: Tensor) -> Tensor:
        with attention_as(model, "eager"):
            logits: Tensor = model(input_ids=ids, use_cache=False).logits
        return logits

    check_dynamic(model, length)
    named = frozenset(inspect.signature(model.forward).parameters)
    layout = probe_cache(model, tuple(named))
    seen = list[tuple[Tensor, nn.Module | None]]()

    def seen_reference(ids: Tensor) -> Tensor:
        seen.append(run_with_head(model, lambda: reference(ids)))
        return seen[-1][0]

    path = choose_path(Model(model, layout, named), seen_reference, length)
    known = path.model
    if context_length is None:
        length -= path.position_offset or 0  # the first rows of its table of positions are not positions
    switch = switch_of(model, length)
    logits, head = seen[-1]
    return Source(
        module=model,
        call=path.call,
        reference=reference,
        head=head,
        geometry=make_geometry(model, known.layout.tensors, logits, heads=path.heads(), context_length=length),
        windows=path.windows(),
        cache=known.layout.tensors,
        one_token=known.one_token,
        attention_path=path.name,
        padding_id=path.padding_id,
        attentions=path.attentions if isinstance(path, FusedAttentionPath) and not known.one_token else None,
        rotary_switch=switch,
    )
