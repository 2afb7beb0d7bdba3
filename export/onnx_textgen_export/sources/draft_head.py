"""A draft head, ready for tracing and for comparison: it guesses a model's next tokens from the model's hidden states."""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from onnx_textgen.backends.signature import DRAFT_STATES

from ..errors import ExportError
from .source import Source, StatesOutput

EMBEDDINGS = "embeddings"
"""The input of a traced head that the model's embedding replaces."""


@dataclasses.dataclass(frozen=True, slots=True)
class DraftHead:
    """A head and what it reads."""

    source: Source
    """Its module takes (embeddings, read states, own states, positions), all [batch, tokens, width] but positions."""
    layers: tuple[int, ...]
    """The layers of the model whose inputs it reads."""
    guessed_ids: list[int]
    """The ids that it can guess."""
    table: Tensor | None
    """The token embedding of its checkpoint, which has to be the model's; None: it has none."""


def embedding_of(module: nn.Module) -> nn.Embedding:
    """The token embedding of a decoder."""
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            return part
    raise ExportError(f"{type(module).__name__} has no nn.Embedding for its tokens, which a draft head reads; leave the head out")


def with_states(source: Source, blocks: list[nn.Module], layers: tuple[int, ...]) -> Source:
    """The model with the hidden states that a head reads as a further output."""
    return dataclasses.replace(source, states=StatesOutput(DRAFT_STATES, tuple(blocks[layer] for layer in layers)))
