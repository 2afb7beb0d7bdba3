"""The sampling options as controls, each with a line on what it does, and their values as options of the runtime."""

from __future__ import annotations

import dataclasses
import secrets
from typing import TYPE_CHECKING, Any

import gradio as gr

from onnx_textgen.errors import OptionError
from onnx_textgen.options.generation_config import make_generation_config

from .limits import LONGEST_TEXT

if TYPE_CHECKING:
    from onnx_textgen import Model

CUTS = ("top_k", "top_p", "min_p")


@dataclasses.dataclass(frozen=True, slots=True)
class SamplingControls:
    """Sliders by the names of their options, and the seed's field."""

    sliders: dict[str, gr.Slider]
    seed: gr.Textbox

    @property
    def inputs(self) -> list[gr.Slider | gr.Textbox]:
        """In the order in which `read_options` takes their values."""
        return [*self.sliders.values(), self.seed]

    def read_options(self, *values: Any) -> dict[str, Any]:  # noqa: ANN401 - what the components hold
        """Options for `Model.stream`; a seed is drawn here for an empty field. Raises `OptionError` for a seed that is no number.

        At temperature 0 nothing is drawn, so the cuts are left out: the runtime refuses options that cannot take effect.
        """
        *numbers, seed = values
        options = dict(zip(self.sliders, numbers, strict=True))
        if options["temperature"] == 0:
            options = {name: value for name, value in options.items() if name not in CUTS}
        return options | {"seed": read_seed(seed)}

    def defaults_of(self, model: Model | None) -> list[Any]:
        """Values for `inputs` that a package brings; nothing changes without one."""
        if model is None:
            return [gr.skip()] * len(self.inputs)
        return [*default_values(model, list(self.sliders)), gr.skip()]


def make_sampling_controls(model: Model, *, with_length: bool = True) -> SamplingControls:
    """The controls, set to the package's defaults; `with_length`: with the number of tokens too."""
    ranges: dict[str, dict[str, Any]] = {
        "max_new_tokens": {
            "minimum": 1,
            "maximum": LONGEST_TEXT,
            "step": 1,
            "precision": 0,
            "label": "Max new tokens",
            "info": "The text ends here at the latest.",
        },
        "temperature": {
            "minimum": 0,
            "maximum": 2,
            "step": 0.05,
            "label": "Temperature",
            "info": "Higher is bolder; 0 always takes the likeliest, and cuts have no effect.",
        },
        "top_k": {
            "minimum": 0,
            "maximum": 200,
            "step": 1,
            "precision": 0,
            "label": "Top-k",
            "info": "Only the k likeliest tokens may come; 0 is all.",
        },
        "top_p": {
            "minimum": 0.01,
            "maximum": 1,
            "step": 0.01,
            "label": "Top-p",
            "info": "Only the fewest tokens that together hold this share of the probability; 1 is all.",
        },
        "min_p": {
            "minimum": 0,
            "maximum": 1,
            "step": 0.01,
            "label": "Min-p",
            "info": "Only tokens at least this many times as likely as the likeliest; 0 is all.",
        },
    }
    if not with_length:
        del ranges["max_new_tokens"]
    values = default_values(model, list(ranges))
    sliders = {name: gr.Slider(**settings, value=value) for (name, settings), value in zip(ranges.items(), values, strict=True)}
    seed = gr.Textbox(
        label="Seed",
        info="The same seed writes the same text.",
        placeholder="a new one each time",
        max_lines=1,
        elem_classes="seed",
    )
    return SamplingControls(sliders, seed)


def default_values(model: Model, names: list[str]) -> list[float]:
    """What a package says for these options, else what the runtime says."""
    defaults = make_generation_config(model.manifest.generation, {})
    longest = min(LONGEST_TEXT, model.manifest.geometry.context_length)
    return [min(defaults.max_new_tokens, longest) if name == "max_new_tokens" else getattr(defaults, name) for name in names]


def read_seed(text: str | None) -> int:
    """The seed a person typed, a fresh one for an empty field; the runtime knows the limits."""
    if not text or not text.strip():
        return secrets.randbits(31)
    try:
        return int(text)
    except ValueError as error:
        raise OptionError(f"seed should be a whole number, found {text[:40]!r}; leave it empty for a new one each time") from error
