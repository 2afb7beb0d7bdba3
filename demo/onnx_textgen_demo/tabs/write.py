"""The tab Write: continues a prompt while the reader watches, and branches at any token.

With an encoder-decoder the prompt is the source that it writes a text for. Such a text has no branches.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr

from onnx_textgen.errors import OnnxTextgenError

from .. import text_pane, view
from ..buttons import RunButtons, at_the_end
from ..encoder_decoders import is_encoder_decoder, name_of_prompt, prompt_for
from ..limits import MAX_PROMPT_CHARS, QUICK, RUNNING, checked
from ..models import ModelRegistry
from ..sampling_controls import SamplingControls, make_sampling_controls
from ..transcripts import Transcript

if TYPE_CHECKING:
    from gradio.events import Dependency

    from onnx_textgen import Model

EXAMPLES = {
    "A rabbit": "Once upon a time, there was a little rabbit who",
    "A red door": "Tom and Lily found a small red door in the garden.",
    "A kite": "Ben had a new red kite. He ran to the hill and",
    "Rain": "One day, it began to rain",
}
ALTERNATIVES = 10
"""Number of bars of the next-token distribution."""
FRAME_SECONDS = 0.08
SECONDS_PER_TOKEN = 0.0005
"""A small model writes faster than a browser redraws, and redrawing a longer text takes longer: frames wait this long per token."""

Frame = tuple[Any, ...]
"""Values for the components, in this order: transcript, text, status, bars, table."""

CLOSED_ON_A_PHONE = "() => ({ __type__: 'update', open: innerWidth > 600 })"


def make_tab(registry: ModelRegistry, picker: gr.Dropdown, picked: Dependency) -> None:
    """Add the tab's components in the current Gradio context, and their listeners."""
    transcript = gr.State()
    with gr.Row():
        with gr.Column(scale=5, min_width=640):  # room for text and alternatives next to each other
            prompt, examples, buttons = prompt_controls(registry.model())
            with gr.Row(elem_id="work"):
                text = gr.HTML(text_pane.text_html(None), js_on_load=text_pane.EVENTS, apply_default_css=False, elem_id="text")
                bars = gr.HTML("", js_on_load=view.CHOICE_EVENTS + view.ALTERNATIVE_EVENTS, apply_default_css=False, elem_id="bars")
                status = gr.HTML(view.status(None), apply_default_css=False, elem_id="status")
        with gr.Column(scale=2, min_width=280), gr.Accordion("Sampling", elem_id="sampling") as settings:
            sampling = make_sampling_controls(registry.model(), "text")
    with gr.Accordion("Every token as a table", open=False, elem_id="table"):
        table = gr.Dataframe(headers=view.TABLE_HEADERS, datatype=["number", "str", "str"], interactive=False, show_label=False)
    gr.on(None, None, None, settings, js=CLOSED_ON_A_PHONE, **QUICK)

    start, again = buttons.starts
    shown, asked = [transcript, text, status, bars, table], [picker, prompt, *sampling.inputs]
    running = {"outputs": shown, **RUNNING}
    generate = make_generate(registry, sampling)

    def choose(before: Transcript | None, event: gr.EventData) -> list[Any]:
        return [*branch(before, event), *buttons.running()]

    pressed = gr.on([start.click, prompt.submit], buttons.running, None, buttons.outputs, **QUICK)
    pressed_again = again.click(lambda: ["", *buttons.running()], None, [sampling.seed, *buttons.outputs], **QUICK)
    chosen = bars.submit(choose, transcript, [*shown, *buttons.outputs], **QUICK)
    runs = [
        pressed.then(generate, asked, **running),
        pressed_again.then(generate, asked, **running),
        chosen.then(make_continue(sampling), [transcript, *sampling.inputs], **running),
    ]
    temperature = sampling.sliders["temperature"]
    now = [transcript, prompt, temperature]
    for run in runs:
        at_the_end(run, settle, now, [*shown, *buttons.outputs])
    buttons.stop.click(None, cancels=runs)
    gr.on([prompt.change, temperature.change], while_at_rest, now, [start, again], trigger_mode="always_last", **QUICK)
    gr.on([text.select, bars.select], select, transcript, [text, bars], **QUICK)
    picked.then(lambda name: sampling.defaults_of(registry.loaded(name)), picker, sampling.inputs, **QUICK)
    picked.then(lambda name, typed: begins_with(registry.loaded(name), typed), [picker, prompt], [prompt, examples], **QUICK)


def begins_with(model: Model | None, typed: str) -> list[Any]:
    """Updates of prompt and examples after a model was picked: the examples are for models that continue a text."""
    if model is None:
        return [gr.skip(), gr.skip()]
    update = {**prompt_for(model, typed, EXAMPLES.values()), "info": explanation(model)}
    return [update, gr.update(visible=not is_encoder_decoder(model))]


def explanation(model: Model) -> str:
    """What a model does with the text in the field."""
    what = "reads this text and writes another one for it" if is_encoder_decoder(model) else "continues this text"
    return f"The model {what}. Shift+Enter generates."


def prompt_controls(model: Model) -> tuple[gr.Textbox, gr.Dataset, RunButtons]:
    """Prompt, examples, and the buttons: Generate, New seed and Stop."""
    reads = is_encoder_decoder(model)
    prompt = gr.Textbox(
        "" if reads else EXAMPLES["A rabbit"],
        label=name_of_prompt(model),
        info=explanation(model),
        lines=2,
        max_lines=12,
        max_length=MAX_PROMPT_CHARS,
        elem_id="prompt",
    )
    examples = gr.Examples(
        [[example] for example in EXAMPLES.values()],
        prompt,
        example_labels=list(EXAMPLES),
        label="Or begin with",
        api_visibility="private",
        elem_id="examples",
        visible=not reads,
    )
    with gr.Row():
        start = gr.Button("Generate", variant="primary", scale=2, min_width=110, interactive=bool(prompt.value), elem_id="generate")
        again = gr.Button("New seed", variant="secondary", scale=1, min_width=100, interactive=False, elem_id="again")
        stop = gr.Button("Stop", variant="secondary", scale=1, min_width=70, interactive=False, elem_id="stop")
    return prompt, examples.dataset, RunButtons((start, again), stop)


def make_generate(registry: ModelRegistry, sampling: SamplingControls) -> Callable[..., Iterator[Frame]]:
    """The listener of the button Generate. Gradio closes its generator on Stop and when the client leaves, which ends the text."""

    def generate(name: str, prompt: str, *values: Any) -> Iterator[Frame]:  # noqa: ANN401 - values of components
        transcript = None
        try:
            model, options = registry.model(name), sampling.read_options(*values)
            about = model.manifest.encoder
            ids = model.encode(checked(prompt)) if about is None else list(about.start_ids)
            transcript = Transcript(model, options["seed"], prompt, ids)
            yield from follow(transcript, options)
        except OnnxTextgenError as error:
            yield failed(transcript, error)
            raise gr.Error(escape(str(error)), print_exception=False) from error

    return generate


def make_continue(sampling: SamplingControls) -> Callable[..., Iterator[Frame]]:
    """The listener that continues the text after a chosen alternative."""

    def continue_text(transcript: Transcript | None, *values: Any) -> Iterator[Frame]:  # noqa: ANN401 - likewise
        if transcript is None or transcript.finish_reason or transcript.has_started:  # pressed twice, for example
            return
        try:
            options = sampling.read_options(*values)
            transcript.seed = options["seed"]
            yield from follow(transcript, options)
        except OnnxTextgenError as error:
            yield failed(transcript, error)
            raise gr.Error(escape(str(error)), print_exception=False) from error

    return continue_text


def branch(transcript: Transcript | None, event: gr.EventData) -> Frame:
    """The text up to the chosen alternative, which is included."""
    if transcript is None or not transcript.finish_reason or transcript.has_source:
        return frame(transcript)
    position, rank = event.alternative
    return frame(transcript.branch(int(position), int(rank)))


def follow(transcript: Transcript, options: Mapping[str, Any]) -> Iterator[Frame]:
    """Let the model continue a transcript; yields frames."""
    transcript.has_started = True
    # The runtime keeps keys and values of prompts, so the part that a branch shares with an earlier text is not computed again.
    prompt = checked(transcript.prompt) if transcript.has_source else transcript.token_ids
    stream = transcript.model.stream(prompt, logprobs=ALTERNATIVES, **options)
    yield frame(transcript)
    with contextlib.closing(stream) as chunks:
        shown = 0.0
        for chunk in chunks:
            transcript.add(chunk)
            if time.perf_counter() - shown >= FRAME_SECONDS + SECONDS_PER_TOKEN * len(transcript.tokens):
                yield frame(transcript)
                shown = time.perf_counter()
    yield frame(transcript)


def frame(transcript: Transcript | None, *, problem: str | None = None) -> Frame:
    """Values for all components. The table waits for the end, because redrawing hundreds of rows many times a second stutters."""
    tokens = transcript.tokens if transcript else []
    is_done = transcript is None or transcript.finish_reason is not None
    return (
        transcript,
        text_pane.text_html(transcript),
        view.status(transcript, problem=problem),
        alternatives(transcript),
        view.rows(tokens) if is_done else gr.skip(),
    )


def alternatives(transcript: Transcript | None) -> str:
    """The bars of the selected token; they are buttons once the text is finished, if it can branch."""
    if transcript is None:
        return ""
    choosable = transcript.finish_reason is not None and not transcript.has_source
    return view.bars(transcript.tokens, transcript.selected_position, choosable=choosable)


def failed(transcript: Transcript | None, error: OnnxTextgenError) -> Frame:
    """Values after an error, which keeps the text so far."""
    if transcript is None:
        return frame(None, problem=str(error))
    transcript.end("failed", problem=str(error))
    return frame(transcript)


def settle(transcript: Transcript | None, prompt: str, temperature: float) -> list[Any]:
    """Values at the end of a run. A stopped generator cannot yield a last frame: its transcript has no end yet."""
    is_stopped = transcript is not None and transcript.finish_reason is None
    if transcript and is_stopped:
        transcript.end("cancelled")
    last = frame(transcript) if is_stopped else [gr.skip()] * len(frame(None))
    return [*last, *at_rest(transcript, prompt, temperature)]


def at_rest(transcript: Transcript | None, prompt: str, temperature: float) -> list[Any]:
    """Updates of Generate, New seed and Stop while nothing runs. New seed needs a text and a temperature above 0."""
    can_generate = bool(prompt)
    can_draw = can_generate and transcript is not None and temperature > 0
    return [gr.update(interactive=can) for can in (can_generate, can_draw, False)]


def while_at_rest(transcript: Transcript | None, prompt: str, temperature: float) -> list[Any]:
    """Updates of Generate and New seed after a change of prompt or temperature; nothing changes during a run."""
    if transcript and not transcript.finish_reason:
        return [gr.skip(), gr.skip()]
    return at_rest(transcript, prompt, temperature)[:2]


def select(transcript: Transcript | None, event: gr.SelectData) -> tuple[str, str]:
    """Select another token."""
    if transcript:
        transcript.selected = max(1, int(event.index))
    return text_pane.text_html(transcript), alternatives(transcript)
