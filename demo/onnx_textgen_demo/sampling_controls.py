"""The sampling options as controls with a short explanation each, and their values as options of the runtime."""

from __future__ import annotations

import dataclasses
import secrets
from typing import TYPE_CHECKING, Any, Literal

import gradio as gr

from onnx_textgen.errors import OptionError
from onnx_textgen.options.merging import make_generation_config

if TYPE_CHECKING:
    from onnx_textgen import Model

Purpose = Literal["text", "answer", "step"]
"""What is generated: an answer may fill the context unless the package says otherwise; a single step has no length to choose."""
TRUNCATION_OPTIONS = ("top_k", "top_p", "min_p")


@dataclasses.dataclass(frozen=True, slots=True)
class SamplingControls:
    """Sliders by option name, and the field of the seed."""

    sliders: dict[str, gr.Slider]
    seed: gr.Textbox
    purpose: Purpose

    @property
    def inputs(self) -> list[gr.Slider | gr.Textbox]:
        """The controls, in the order of the values for `read_options`."""
        return [*self.sliders.values(), self.seed]

    def read_options(self, *values: Any) -> dict[str, Any]:  # noqa: ANN401 - values of components
        """Options for `Model.stream`, with a new seed for an empty field. Raises `OptionError` for a seed that is not a number.

        At temperature 0 the truncation options are left out, because the runtime refuses options that cannot take effect.
        """
        *numbers, seed = values
        options = dict(zip(self.sliders, numbers, strict=True))
        if options["temperature"] == 0:
            options = {name: value for name, value in options.items() if name not in TRUNCATION_OPTIONS}
        return options | {"seed": read_seed(seed)}

    def defaults_of(self, model: Model | None) -> list[Any]:
        """Updates of `inputs` to the package's defaults; no change without a model."""
        if model is None:
            return [gr.skip()] * len(self.inputs)
        return [*(gr.update(**settings) for settings in slider_settings(model, self.purpose).values()), gr.skip()]


RANGES: dict[str, dict[str, Any]] = {
    "max_new_tokens": {
        "minimum": 1,
        "step": 1,
        "precision": 0,
        "label": "Max new tokens",
        "info": "The text ends here at the latest, and where the context ends.",
    },
    "temperature": {
        "minimum": 0,
        "maximum": 2,
        "step": 0.05,
        "label": "Temperature",
        "info": "Higher is bolder; 0 always takes the most likely token, and truncation has no effect.",
    },
    "top_k": {
        "minimum": 0,
        "maximum": 200,
        "step": 1,
        "precision": 0,
        "label": "Top-k",
        "info": "Keep only the k most likely tokens; 0 keeps all.",
    },
    "top_p": {
        "minimum": 0.01,
        "maximum": 1,
        "step": 0.01,
        "label": "Top-p",
        "info": "Keep only the fewest tokens that together hold this share of the probability; 1 keeps all.",
    },
    "min_p": {
        "minimum": 0,
        "maximum": 1,
        "step": 0.01,
        "label": "Min-p",
        "info": "Keep only tokens at least this many times as likely as the most likely one; 0 keeps all.",
    },
}
"""Settings of the sliders, by option."""


def make_sampling_controls(model: Model, purpose: Purpose) -> SamplingControls:
    """The controls, set to the package's defaults."""
    sliders = {name: gr.Slider(**RANGES[name], **settings) for name, settings in slider_settings(model, purpose).items()}
    seed = gr.Textbox(
        label="Seed",
        info="The same seed gives the same text.",
        placeholder="a new one each time",
        max_lines=1,
        elem_classes="seed",
    )
    return SamplingControls(sliders, seed, purpose)


def slider_settings(model: Model, purpose: Purpose) -> dict[str, dict[str, Any]]:
    """What the sliders take from a model, by option: its defaults, and its context as the longest text."""
    given, context = model.manifest.generation, model.manifest.geometry.context_length
    defaults = make_generation_config(given, {})
    settings = {name: {"value": getattr(defaults, name)} for name in RANGES}
    fills_context = purpose == "answer" and "max_new_tokens" not in given
    length = context if fills_context else min(defaults.max_new_tokens, context)
    settings["max_new_tokens"] = {"value": length, "maximum": context}
    return {name: each for name, each in settings.items() if purpose != "step" or name != "max_new_tokens"}


def read_seed(text: str | None) -> int:
    """The typed seed, or a new one for an empty field; the runtime checks its limits."""
    if not text or not text.strip():
        return secrets.randbits(31)
    try:
        return int(text)
    except ValueError as error:
        raise OptionError(f"seed should be a whole number, found {text[:40]!r}; leave it empty for a new one each time") from error
