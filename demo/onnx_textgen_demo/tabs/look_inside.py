"""The tab Look inside: one prompt goes through the pipeline, a stage at a time, forwards and back."""

from __future__ import annotations

import dataclasses
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr

from onnx_textgen.errors import OnnxTextgenError

from .. import pictures, view
from ..limits import MAX_PROMPT_CHARS, RUNNING, checked
from ..sampling_controls import make_sampling_controls
from ..shelf import Shelf
from ..walk import Walk

if TYPE_CHECKING:
    from gradio.events import Dependency

    from onnx_textgen import Model
    from onnx_textgen.options.generation_config import GenerationConfig

EXAMPLE = "Once upon a time, there was a little"
OF_PROMPT = sum(not is_of_step for _, _, is_of_step in pictures.STAGES)
"""Stages that come once; the others come with every new token."""
OF_STEP = len(pictures.STAGES) - OF_PROMPT


@dataclasses.dataclass(slots=True)
class Visit:
    """A walk, and where in it a person stands."""

    walk: Walk
    place: int = 0
    """Pictures before this one."""

    @property
    def stage(self) -> int:
        """Index in `STAGES`."""
        return self.place if self.place < OF_PROMPT else OF_PROMPT + (self.place - OF_PROMPT) % OF_STEP

    @property
    def number(self) -> int:
        """The step, 0 = the first new token."""
        return max(0, self.place - OF_PROMPT) // OF_STEP

    def can_go(self, by: int) -> bool:
        """Whether there is anything so many pictures further on, or before."""
        there = dataclasses.replace(self, place=self.place + by)
        return there.place >= 0 and (there.place < OF_PROMPT or there.number < len(self.walk.looks) or self.walk.can_step())

    def go(self, place: int) -> None:
        """Stand elsewhere; the model runs where nobody was before. Stays where the text has ended, and where the model fails."""
        there = dataclasses.replace(self, place=max(0, place))
        while there.place >= OF_PROMPT and there.number >= len(self.walk.looks):
            if not self.walk.can_step():
                return
            self.walk.step()
        self.place = there.place


def make_tab(shelf: Shelf, picker: gr.Dropdown, picked: Dependency) -> None:
    """Put the tab's components where Gradio stands, and let them answer."""
    visit = gr.State()
    with gr.Row():
        with gr.Column(scale=3, min_width=560):
            prompt = gr.Textbox(EXAMPLE, label="Prompt", max_lines=4, max_length=MAX_PROMPT_CHARS, elem_id="walk-prompt")
            start = gr.Button("Walk through", variant="primary", elem_id="walk")
            stages = gr.HTML(pictures.stage_line(-1), js_on_load=view.CHOICE_EVENTS, apply_default_css=False, elem_id="stages")
            with gr.Row():
                back = gr.Button("Back", min_width=80, size="md", interactive=False, elem_id="back")
                forward = gr.Button("Next", variant="primary", min_width=80, size="md", interactive=False, elem_id="next")
                another = gr.Button("Next token", min_width=80, size="md", interactive=False, elem_id="next-token")
            whose, layer, head = make_head_choice()
            picture = gr.HTML(
                pictures.picture(None, 0, 0), apply_default_css=False, container=True, padding=True, elem_id="picture"
            )
        with gr.Column(scale=1, min_width=280), gr.Accordion("Sampling", open=True, elem_id="walk-sampling"):
            sampling = make_sampling_controls(shelf.model(), with_length=False)
    shown = [visit, stages, picture, whose, layer, head, back, forward, another]
    settings = {"outputs": shown, **RUNNING}

    def config_of(model: Model, values: tuple[Any, ...]) -> GenerationConfig:
        return model.config(sampling.read_options(*values))

    def begin(name: str, text: str, *values: Any) -> tuple[Any, ...]:  # noqa: ANN401 - what the components hold
        try:
            model = shelf.model(name)
            return draw(Visit(Walk(model, checked(text), config_of(model, values))))
        except OnnxTextgenError as error:
            raise gr.Error(escape(str(error)), print_exception=False) from error

    def go(here: Visit | None, by: int) -> tuple[Any, ...]:
        try:
            if here:
                here.go(here.place + by)
        except OnnxTextgenError as error:
            raise gr.Error(escape(str(error)), print_exception=False) from error
        return draw(here)

    def jump(here: Visit | None, event: gr.SelectData) -> tuple[Any, ...]:
        stage = int(event.index)
        number = here.number if here else 0
        return go(here, (stage if stage < OF_PROMPT else stage + number * OF_STEP) - here.place if here else 0)

    def choose_again(here: Visit | None, *values: Any) -> tuple[Any, ...]:  # noqa: ANN401 - likewise
        try:
            if here:
                config = config_of(here.walk.model, values)
                if not str(values[-1] or "").strip():  # the seed's field is empty: the same random number, on other bars
                    config = dataclasses.replace(config, seed=here.walk.config.seed)
                here.walk.choose_again(here.number, config)
        except OnnxTextgenError as error:
            raise gr.Error(escape(str(error)), print_exception=False) from error
        return draw(here)

    gr.on([start.click, prompt.submit], begin, [picker, prompt, *sampling.inputs], **settings)
    back.click(lambda here: go(here, -1), visit, **settings)
    forward.click(lambda here: go(here, 1), visit, **settings)
    another.click(lambda here: go(here, OF_STEP), visit, **settings)
    stages.select(jump, visit, **settings)
    gr.on([layer.input, head.input], look_at, [visit, layer, head], [visit, picture], trigger_mode="always_last", **RUNNING)
    # The model does not run for this: kept logits are weighed again, as often as the slider moves.
    gr.on(
        [slider.change for slider in sampling.sliders.values()] + [sampling.seed.change],
        choose_again,
        [visit, *sampling.inputs],
        trigger_mode="always_last",
        **settings,
    )
    picked.then(
        lambda name: sampling.defaults_of(shelf.loaded(name)), picker, sampling.inputs, queue=False, api_visibility="private"
    )


def make_head_choice() -> tuple[gr.Row, gr.Slider, gr.Slider]:
    """Whose attention is shown: layer and head, in a row that is there at that stage alone."""
    with gr.Row(visible=False, elem_id="whose") as row:
        layer, head = (
            gr.Slider(1, 2, value=1, step=1, label=name, min_width=140, elem_id=name.lower()) for name in ("Layer", "Head")
        )
    return row, layer, head


def look_at(here: Visit | None, layer: float, head: float) -> tuple[Visit | None, str]:
    """Show the attention of another layer or head, which are counted from 1 here; the sliders are where they were put."""
    if here is None:
        return None, pictures.picture(None, 0, 0)
    here.walk.look_at(int(layer) - 1, int(head) - 1)
    return here, pictures.picture(here.walk, here.stage, here.number)


def draw(here: Visit | None) -> tuple[Any, ...]:
    """Values for the components: visit, stages, picture, whose attention is shown (both, layer, head), and the three ways on."""
    if here is None:
        nobody = [gr.update(visible=False), gr.update(), gr.update()]
        return None, pictures.stage_line(-1), pictures.picture(None, 0, 0), *nobody, *[gr.update(interactive=False)] * 3
    walk = here.walk
    geometry, looks = walk.model.manifest.geometry, here.stage == pictures.ATTENTION and walk.model.has_attention_maps
    return (
        here,
        pictures.stage_line(here.stage),
        pictures.picture(walk, here.stage, here.number),
        gr.update(visible=looks),
        gr.update(maximum=geometry.layers, value=walk.layer + 1, interactive=geometry.layers > 1),
        gr.update(maximum=geometry.heads, value=walk.head + 1, interactive=geometry.heads > 1),
        *(gr.update(interactive=here.can_go(by)) for by in (-1, 1, OF_STEP)),
    )
