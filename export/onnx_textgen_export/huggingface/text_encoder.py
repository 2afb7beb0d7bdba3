"""A text encoder as the exporter sees it: a transformers model, what comes after it, and how it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from onnx_textgen.backends.signature import LAST_HIDDEN_STATE, LOGITS
from onnx_textgen.encoders.text_encoder import IDS, MASK, SENTENCE_EMBEDDING, TYPES
from onnx_textgen.errors import first_line
from onnx_textgen.package.manifest import Geometry, Target

from ..errors import ExportError, innermost
from ..layers.encoder_attention import ATTENTION, OWN, counted_calls
from ..layers.experts import EXPERTS, experts_for
from ..layers.rotary_scaling import traceable_rotary
from ..layers.torch_substitutes import OnnxSubstitutes
from .probed_model import attention_as, experts_as

PROBE = ((5, 6, 7, 8), (1, 1, 1, 1))
"""Ids and a mask to try code with."""


class Reader(nn.Module):
    """The model with the modules after it; its outputs are `TextEncoder.outputs`."""

    def __init__(self, model: PreTrainedModel, after: nn.Module | None) -> None:
        """`after`: from states [batch, tokens, hidden size] and their mask to vectors; None: the model scores pairs."""
        super().__init__()
        self.model, self.after = model, after

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> tuple[Tensor, ...]:
        """States [batch, tokens, hidden size] and vectors [batch, width] of texts, or scores [batch, labels] of pairs."""
        more = {} if types is None else {TYPES: types}
        found = self.model(input_ids=ids, attention_mask=mask, **more)
        if self.after is None:
            return (found.logits,)
        return found.last_hidden_state, self.after(found.last_hidden_state, mask)


@dataclasses.dataclass(frozen=True, slots=True)
class TextEncoder:
    """A text encoder, ready for tracing and for comparison."""

    reader: Reader
    geometry: Geometry
    attention: str
    """How its attention is traced: `ATTENTION` or `OWN`."""
    takes_types: bool
    """Whether the tokens of a pair say which text they are of."""
    outputs: tuple[str, ...]
    padding_id: int | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the graph's inputs."""
        return (IDS, MASK, TYPES) if self.takes_types else (IDS, MASK)

    @property
    def scores(self) -> bool:
        """Whether it scores pairs; else it makes vectors."""
        return self.outputs == (LOGITS,)

    @contextlib.contextmanager
    def running(self, target: Target) -> Iterator[None]:
        """The context of a run that is traced for a target."""
        model, name = self.reader.model, self.attention if target == "ort" else OWN
        with (
            attention_as(model, name),
            experts_as(model, EXPERTS),
            experts_for(target),
            traceable_rotary(model),
            OnnxSubstitutes(),
        ):
            yield

    def reference(self, ids: Sequence[int], types: Sequence[int] = ()) -> list[Tensor]:
        """PyTorch's outputs for one text or pair, by code that the export does not change."""
        given = [torch.tensor([list(ids)]), torch.ones(1, len(ids), dtype=torch.int64)]
        given += [torch.tensor([list(types) or [0] * len(ids)])] if self.takes_types else []
        try:
            with torch.no_grad(), attention_as(self.reader.model, OWN):
                return list(self.reader(*given))
        except Exception as error:
            name = type(self.reader.model).__name__
            raise ExportError(f"{name} failed on {len(ids)} tokens: {first_line(innermost(error))}") from error


def open_text_encoder(model: PreTrainedModel, after: nn.Module | None, context_length: int | None) -> TextEncoder:
    """Find out how a model runs; raises `ExportError` for one that is no text encoder.

    after: what makes vectors of its states; None: the model scores pairs.
    """
    try:
        return probed(model, after, context_length)
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"{type(model).__name__} failed on four tokens: {first_line(innermost(error))}") from error


def probed(model: PreTrainedModel, after: nn.Module | None, context_length: int | None) -> TextEncoder:
    """`open_text_encoder`, with whatever the model's own code raises."""
    reader = Reader(model, after)
    takes_types = after is None and TYPES in inspect.signature(model.forward).parameters and has_types(model)
    outputs = (LOGITS,) if after is None else (LAST_HIDDEN_STATE, SENTENCE_EMBEDDING)
    ids, mask = (torch.tensor([each]) for each in PROBE)
    with torch.no_grad(), attention_as(model, OWN):
        found = reader(ids, mask)
    if found[0].dim() != (2 if after is None else 3):
        raise ExportError(f"{type(model).__name__} gives neither states of tokens nor scores of texts")
    return TextEncoder(
        reader=reader,
        geometry=geometry_of(model, context_length),
        attention=path_of(reader),
        takes_types=takes_types,
        outputs=outputs,
        padding_id=getattr(model.config.get_text_config(), "pad_token_id", None),
    )


def has_types(model: PreTrainedModel) -> bool:
    """Return whether the model has more than one type of tokens."""
    found = getattr(model.config, "type_vocab_size", 0)
    return isinstance(found, int) and found > 1


def path_of(reader: Reader) -> str:
    """How the model's attention can be traced: by one operator if all of it goes through transformers' interface."""
    ids, mask = (torch.tensor([each]) for each in PROBE)
    try:
        with torch.no_grad(), counted_calls() as calls, attention_as(reader.model, ATTENTION):
            reader(ids, mask)
    except Exception:  # noqa: BLE001 - whatever the model's own code raises with another attention
        return OWN
    return ATTENTION if calls else OWN


def geometry_of(model: PreTrainedModel, context_length: int | None) -> Geometry:
    """Sizes from the config and the modules."""
    config: Any = model.config.get_text_config()
    vocab_size, embedding_size = cast(nn.Embedding, model.get_input_embeddings()).weight.shape
    heads = number(config, "num_attention_heads") or 1
    width = number(config, "hidden_size") or embedding_size
    return Geometry(
        layers=number(config, "num_hidden_layers") or 1,
        heads=heads,
        kv_heads=number(config, "num_key_value_heads") or heads,
        head_size=number(config, "head_dim") or max(1, width // heads),
        hidden_size=width,
        vocab_size=vocab_size,
        context_length=context_length or length_of(model, config),
    )


def number(config: object, name: str) -> int | None:
    """A positive whole number of a config; None if it has none."""
    found = getattr(config, name, None)
    return found if isinstance(found, int) and found > 0 else None


def length_of(model: PreTrainedModel, config: object) -> int:
    """The most tokens of a text: positions of a table begin after the one of padding, where the table has one."""
    stated = number(config, "max_position_embeddings")
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and "position" in name and module.num_embeddings == stated:
            return stated - (0 if module.padding_idx is None else module.padding_idx + 1)
    if stated is None:
        raise ExportError(f"the config of {type(model).__name__} does not say how long its texts may be; add --context-length N")
    return stated
