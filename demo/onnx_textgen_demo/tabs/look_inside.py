"""The tab Look inside: one prompt on its way through the pipeline, a stage at a time, forwards and backwards."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import gradio as gr

from .. import view
from ..encoder_decoders import is_encoder_decoder, name_of_prompt, prompt_for
from ..error_messages import shown_errors
from ..limits import MAX_PROMPT_CHARS, QUICK, RUNNING, checked
from ..models import ModelRegistry
from ..pictures import stage_pictures
from ..pictures.step_inspection import StepInspector
from ..sampling_controls import SamplingControls, make_sampling_controls

if TYPE_CHECKING:
    from gradio.events import Dependency

    from onnx_textgen import Model
    from onnx_textgen.options.generation_config import GenerationConfig

EXAMPLE = "Once upon a time, there was a little"
OF_PROMPT = sum(not is_of_step for _, _, is_of_step in stage_pictures.STAGES)
"""Number of stages that are shown once; the others are shown for every new token."""
OF_STEP = len(stage_pictures.STAGES) - OF_PROMPT


@dataclasses.dataclass(slots=True)
class StageCursor:
    """A prompt with its steps, and the picture that a reader looks at."""

    inspector: StepInspector
    place: int = 0
    """Number of pictures before this one."""

    @property
    def stage(self) -> int:
        """Index in `STAGES`."""
        return self.place if self.place < OF_PROMPT else OF_PROMPT + (self.place - OF_PROMPT) % OF_STEP

    @property
    def number(self) -> int:
        """The step, 0 = the first new token."""
        return max(0, self.place - OF_PROMPT) // OF_STEP

    def can_move(self, by: int) -> bool:
        """Whether there is a picture that many pictures later (or, if negative, earlier)."""
        target, steps = dataclasses.replace(self, place=self.place + by), len(self.inspector.steps)
        return target.place >= 0 and (target.place < OF_PROMPT or target.number < steps or self.inspector.can_step())

    def move_to(self, place: int) -> None:
        """Show another picture; runs the model for new steps. Stays where it is if the text has ended, or if the model fails."""
        target = dataclasses.replace(self, place=max(0, place))
        while target.place >= OF_PROMPT and target.number >= len(self.inspector.steps):
            if not self.inspector.can_step():
                return
            self.inspector.step()
        self.place = target.place


def make_tab(registry: ModelRegistry, picker: gr.Dropdown, picked: Dependency) -> None:
    """Add the tab's components in the current Gradio context, and their listeners."""
    cursor, first = gr.State(), registry.model()
    with gr.Row():
        with gr.Column(scale=3, min_width=560):
            typed = "" if is_encoder_decoder(first) else EXAMPLE
            label = name_of_prompt(first)
            prompt = gr.Textbox(typed, label=label, max_lines=4, max_length=MAX_PROMPT_CHARS, elem_id="walk-prompt")
            start = gr.Button("Walk through", variant="primary", elem_id="walk")
            stages = gr.HTML(
                stage_pictures.stage_line(-1), js_on_load=view.CHOICE_EVENTS, apply_default_css=False, elem_id="stages"
            )
            back, forward, another = make_move_buttons()
            head_row, layer, head = make_head_choice()
            picture = gr.HTML(
                stage_pictures.picture(None, 0, 0), apply_default_css=False, container=True, padding=True, elem_id="picture"
            )
        with gr.Column(scale=1, min_width=280), gr.Accordion("Sampling", open=True, elem_id="walk-sampling"):
            sampling = make_sampling_controls(registry.model(), "step")
    shown = [cursor, stages, picture, head_row, layer, head, back, forward, another]
    settings = {"outputs": shown, **RUNNING}
    answers = Answers(registry, sampling)

    gr.on([start.click, prompt.submit], answers.begin, [picker, prompt, *sampling.inputs], **settings)
    # "always_last": a click while the one before is still under way would else be lost.
    back.click(lambda now: move(now, -1), cursor, trigger_mode="always_last", **settings)
    forward.click(lambda now: move(now, 1), cursor, trigger_mode="always_last", **settings)
    another.click(lambda now: move(now, OF_STEP), cursor, trigger_mode="always_last", **settings)
    stages.select(jump, cursor, **settings)
    gr.on([layer.input, head.input], select_head, [cursor, layer, head], [cursor, picture], trigger_mode="always_last", **RUNNING)
    # The model does not run for this: the kept logits are sampled again, whenever a slider moves.
    gr.on(
        [slider.change for slider in sampling.sliders.values()] + [sampling.seed.change],
        answers.choose_again,
        [cursor, *sampling.inputs],
        trigger_mode="always_last",
        **settings,
    )
    picked.then(
        lambda name: sampling.defaults_of(registry.loaded(name)), picker, sampling.inputs, queue=False, api_visibility="private"
    )
    picked.then(lambda name, text: prompt_for(registry.loaded(name), text, [EXAMPLE]), [picker, prompt], prompt, **QUICK)


@dataclasses.dataclass(frozen=True, slots=True)
class Answers:
    """Listeners that need the sampling options; `values` are the values of the sampling controls."""

    registry: ModelRegistry
    sampling: SamplingControls

    def config(self, model: Model, values: tuple[Any, ...]) -> GenerationConfig:
        """The generation options that the controls show."""
        return model.generator.config(self.sampling.read_options(*values))

    def begin(self, name: str, text: str, *values: Any) -> tuple[Any, ...]:  # noqa: ANN401 - values of components
        """Start with a prompt."""
        with shown_errors():
            model = self.registry.model(name)
            return draw(StageCursor(StepInspector(model, checked(text), self.config(model, values))))

    def choose_again(self, cursor: StageCursor | None, *values: Any) -> tuple[Any, ...]:  # noqa: ANN401 - likewise
        """Apply changed options to the step that is shown."""
        if cursor:
            with shown_errors():
                config = self.config(cursor.inspector.model, values)
                if not str(values[-1] or "").strip():  # without a seed: the same random number, for other probabilities
                    config = dataclasses.replace(config, seed=cursor.inspector.config.seed)
                cursor.inspector.choose_again(cursor.number, config)
        return draw(cursor)


def move(cursor: StageCursor | None, by: int) -> tuple[Any, ...]:
    """Show the picture that many pictures later or earlier."""
    if cursor:
        with shown_errors():
            cursor.move_to(cursor.place + by)
    return draw(cursor)


def jump(cursor: StageCursor | None, event: gr.SelectData) -> tuple[Any, ...]:
    """Show the pressed stage, of the same step."""
    if cursor is None:
        return draw(None)
    stage = int(event.index)
    return move(cursor, (stage if stage < OF_PROMPT else stage + cursor.number * OF_STEP) - cursor.place)


def make_move_buttons() -> tuple[gr.Button, gr.Button, gr.Button]:
    """A row of buttons: Back, Next and Next token."""
    with gr.Row():
        back = gr.Button("Back", min_width=80, size="md", interactive=False, elem_id="back")
        forward = gr.Button("Next", variant="primary", min_width=80, size="md", interactive=False, elem_id="next")
        another = gr.Button("Next token", min_width=80, size="md", interactive=False, elem_id="next-token")
    return back, forward, another


def make_head_choice() -> tuple[gr.Row, gr.Slider, gr.Slider]:
    """Sliders for the layer and head whose attention is shown, in a row that is visible only at that stage."""
    with gr.Row(visible=False, elem_id="whose") as row:
        layer, head = (
            gr.Slider(1, 2, value=1, step=1, label=name, min_width=140, elem_id=name.lower()) for name in ("Layer", "Head")
        )
    return row, layer, head


def select_head(cursor: StageCursor | None, layer: float, head: float) -> tuple[StageCursor | None, str]:
    """Show the attention of another layer or head, both counted from 1; the sliders stay as they were set."""
    if cursor is None:
        return None, stage_pictures.picture(None, 0, 0)
    cursor.inspector.select_head(int(layer) - 1, int(head) - 1)
    return cursor, stage_pictures.picture(cursor.inspector, cursor.stage, cursor.number)


def draw(cursor: StageCursor | None) -> tuple[Any, ...]:
    """Values for the components: cursor, stages, picture, the row of layer and head with its sliders, the move buttons."""
    if cursor is None:
        hidden = [gr.update(visible=False), gr.update(), gr.update()]
        return None, stage_pictures.stage_line(-1), stage_pictures.picture(None, 0, 0), *hidden, *[gr.update(interactive=False)] * 3
    inspector = cursor.inspector
    geometry = inspector.model.manifest.geometry
    return (
        cursor,
        stage_pictures.stage_line(cursor.stage),
        stage_pictures.picture(inspector, cursor.stage, cursor.number),
        gr.update(visible=cursor.stage == stage_pictures.ATTENTION and inspector.model.manifest.has_attention_maps),
        gr.update(maximum=geometry.layers, value=inspector.layer + 1, interactive=geometry.layers > 1),
        gr.update(maximum=geometry.heads, value=inspector.head + 1, interactive=geometry.heads > 1),
        *(gr.update(interactive=cursor.can_move(by)) for by in (-1, 1, OF_STEP)),
    )
