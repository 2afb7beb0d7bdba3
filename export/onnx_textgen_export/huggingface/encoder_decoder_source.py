"""A transformers encoder-decoder as a `Source`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from onnx_textgen.package.hf_settings import start_ids, suppressed_ids, without_nulls

from ..errors import ExportError
from ..sources.source import EncoderPart, Source, make_geometry
from .decoder import length_in, run_with_head
from .decoder_paths import choose_path
from .encoder_decoder import EncoderDecoder

ASSUMED_LENGTH = 512
"""Tokens of a text and of a source where the config names no limit, as relative positions need none: what T5 was trained on."""


SOUND_IDS = 64
"""Most ids that stand for the features of a sound."""


def heads_of(config: PretrainedConfig) -> int:
    """Query heads of the decoder by its own config, which calls them as a decoder does; 1 if it calls them otherwise."""
    found = getattr(config, "num_attention_heads", None)
    return found if isinstance(found, int) else 1


def source_length_of(config: PretrainedConfig, length: int) -> int:
    """The most tokens that the encoder reads: where its config names none, as many as a text may have."""
    found = getattr(config, "max_encoder_position_embeddings", None)
    return found if isinstance(found, int) else length


def settings_of(module: PreTrainedModel) -> dict[str, Any]:
    """Return the settings of the module's texts from its configs."""
    configs = (module.config, module.generation_config)
    settings: dict[str, Any] = {}
    for config in configs:
        settings |= without_nulls(config.to_dict())
    return settings


def start_of(module: PreTrainedModel) -> tuple[int, ...]:
    """The ids that every text begins with, as transformers begins it; raises `ExportError` if nothing names them."""
    settings = settings_of(module)
    found = start_ids({"decoder_start_token_id": settings.get("bos_token_id")} | settings)
    if not found:
        raise ExportError(
            f"the config of {type(module).__name__} has no decoder_start_token_id, which its texts begin with; add it"
        )
    return found


def source_from_encoder_decoder(module: PreTrainedModel, *, context_length: int | None = None) -> Source:
    """A source from a transformers model of its sequence-to-sequence mapping."""
    model = EncoderDecoder(module)
    config = module.config.get_text_config(decoder=True)
    path = choose_path(model)

    def reference(ids: Tensor) -> Tensor:
        return model.reference(ids, ids)

    logits, head = run_with_head(module, lambda: reference(torch.tensor([[0, 1]])))
    stated = context_length or length_in(config)
    length = stated or ASSUMED_LENGTH
    return Source(
        module=module,
        call=path.call,
        reference=reference,
        head=head,
        geometry=make_geometry(module, model.layout.tensors, logits, heads=heads_of(config), context_length=length),
        windows=(),
        cache=model.layout.tensors,
        one_token=path.one_token,
        attention_path="own",
        padding_id=model.padding_id,
        has_assumed_length=stated is None,
        encoder=EncoderPart(
            call=model.encode,
            cross=model.cross,
            reference=model.reference,
            states=model.states,
            call_with_attentions=path.call_with_attentions,
            attentions=model.attentions,
            source_length=source_length_of(config, length) if model.features is None else SOUND_IDS,
            features=model.features,
            start_ids=start_of(module),
            suppressed_ids=suppressed_ids(settings_of(module)),
        ),
    )
