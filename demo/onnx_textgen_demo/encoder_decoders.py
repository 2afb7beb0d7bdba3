"""What the page says and shows differently of an encoder-decoder, which reads a source and writes a text for it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import gradio as gr

if TYPE_CHECKING:
    from onnx_textgen import Model


def is_encoder_decoder(model: Model) -> bool:
    """Whether a model reads a source."""
    return model.manifest.encoder is not None


def can_chat(model: Model) -> bool:
    """Whether a model answers chats."""
    return model.chat_template is not None and not is_encoder_decoder(model)


def name_of_prompt(model: Model) -> str:
    """The label of the field for what a model is given."""
    return "Source" if is_encoder_decoder(model) else "Prompt"


def prompt_for(model: Model | None, typed: str, examples: Collection[str]) -> Any:  # noqa: ANN401 - Gradio's
    """The update of such a field after a model was picked; an example for models that continue a text is no source."""
    if model is None:
        return gr.skip()
    is_example = is_encoder_decoder(model) and typed in examples
    return gr.update(label=name_of_prompt(model), value="" if is_example else typed)
