"""A transformers model as a `Source`: a causal language model, or an encoder-decoder."""

from __future__ import annotations

from transformers import PreTrainedModel

from ..sources.source import Source
from .decoder import source_from_decoder
from .encoder_decoder_source import source_from_encoder_decoder


def source_from_model(model: PreTrainedModel, *, context_length: int | None = None) -> Source:
    """A source from a transformers model; raises `ExportError` for one that cannot be exported."""
    make = source_from_encoder_decoder if model.config.is_encoder_decoder else source_from_decoder
    return make(model, context_length=context_length)
