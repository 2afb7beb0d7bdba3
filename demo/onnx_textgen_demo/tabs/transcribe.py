"""The tab Transcribe: writes down what is said in a sound, for models that read sound."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr

from onnx_textgen import Cancellation, Segment
from onnx_textgen.errors import OnnxTextgenError

from ..background import in_background
from ..buttons import RunButtons, at_the_end
from ..limits import MAX_PROMPT_CHARS, QUICK, RUNNING, checked
from ..models import ModelRegistry
from ..speech import segments_pane, sound_pane
from ..view import ENDINGS, Fact, status_line

if TYPE_CHECKING:
    from gradio.events import Dependency

    from onnx_textgen import Model, Transcription

HEARD = "the one that is heard"
SAME = "in its language"
TASKS = {SAME: "transcribe", "in English": "translate"}
WRITING = "writing ..."
MOST_SECONDS = 3600.0
"""Time limit of a sound, because the page does not notice when another program disconnects."""
NAMES_OF_LANGUAGES = f"""(codes) => {{
  const names = new Intl.DisplayNames(["en"], {{ type: "language" }});
  const named = codes.map((code) => [names.of(code), code]).sort(([one], [other]) => one.localeCompare(other));
  return {{ __type__: "update", choices: [["{HEARD}", ""], ...named] }};
}}"""

Frame = tuple[Any, Any]
"""Values for the components: the segments, and the status line."""


def reads_sound(model: Model) -> bool:
    """Whether a model has a use for this tab, and for no other."""
    return model.manifest.speech is not None


def make_tab(registry: ModelRegistry, picker: gr.Dropdown, picked: Dependency) -> None:
    """Add the tab's components in the current Gradio context, and their listeners."""
    first = registry.model()
    with gr.Row():
        with gr.Column(scale=5, min_width=320):
            sound = gr.HTML(
                None,
                html_template=sound_pane.TEMPLATE,
                js_on_load=sound_pane.EVENTS,
                apply_default_css=False,
                elem_id="sound",
            )
            with gr.Row():
                start = gr.Button("Transcribe", variant="primary", scale=2, min_width=110, elem_id="transcribe")
                stop = gr.Button("Stop", scale=1, min_width=70, interactive=False, elem_id="transcribe-stop")
            said = gr.HTML(segments_pane.HINT, js_on_load=segments_pane.EVENTS, apply_default_css=False, elem_id="said")
            status = gr.HTML(status_line([], ""), apply_default_css=False, elem_id="transcribe-status")
        with gr.Column(scale=2, min_width=240):
            codes = gr.JSON(codes_of(first), visible=False)
            choices = choices_of(codes_of(first))
            language = gr.Dropdown(choices, value="", label="Language", visible=len(choices) > 1, elem_id="language")
            task = gr.Radio(list(TASKS), value=SAME, label="Write it", visible=translates(first), elem_id="task")
            before = gr.Textbox(
                label="Words to expect",
                info="Names and terms, in a sentence: their spelling is followed.",
                max_lines=4,
                max_length=MAX_PROMPT_CHARS,
                elem_id="expected",
            )
    shown, buttons = [said, status], RunButtons((start,), stop)

    def transcribe(name: str, value: object, code: str, way: str, words: str) -> Iterator[Frame]:
        try:
            model, samples = registry.model(name), sound_pane.samples_of(value)
            options: dict[str, Any] = {"language": code or None, "task": TASKS.get(way, way), "initial_prompt": checked(words)}
            run = functools.partial(model.transcribe, samples, sampling_rate=sound_pane.RATE, max_time=MOST_SECONDS, **options)
            yield from follow(run)
        except OnnxTextgenError as error:
            yield gr.skip(), status_line([], str(error), is_problem=True)
            raise gr.Error(escape(str(error)), print_exception=False) from error

    pressed = start.click(buttons.running, None, buttons.outputs, **QUICK)
    run = pressed.then(transcribe, [picker, sound, language, task, before], shown, **RUNNING)
    at_the_end(run, lambda said: [at_rest(said), *buttons.at_rest()], [status], [status, *buttons.outputs])
    stop.click(None, cancels=[run])
    sound.input(lambda: (segments_pane.HINT, status_line([], "")), None, shown, cancels=[run], **QUICK)
    picked_languages = picked.then(lambda name: updates(registry.loaded(name)), picker, [codes, language, task], **QUICK)
    picked_languages.then(None, codes, language, js=NAMES_OF_LANGUAGES, **QUICK)
    gr.on(None, None, codes, language, js=NAMES_OF_LANGUAGES, **QUICK)  # when the page is loaded


def codes_of(model: Model | None) -> list[str]:
    """The codes of the languages that a model tells apart."""
    about = None if model is None else model.manifest.speech
    return [] if about is None else list(about.languages)


def choices_of(codes: Sequence[str]) -> list[tuple[str, str]]:
    """The choices of languages, until the browser names them."""
    return [(HEARD, ""), *((code, code) for code in codes)]


def translates(model: Model | None) -> bool:
    """Whether a model can write English for another language."""
    about = None if model is None else model.manifest.speech
    return about is not None and "translate" in about.tasks


def updates(model: Model | None) -> list[Any]:
    """Updates of the codes, the language and the task after a model was picked."""
    codes = codes_of(model)
    language = gr.update(choices=choices_of(codes), value="", visible=bool(codes))
    return [codes, language, gr.update(value=SAME, visible=translates(model))]


def follow(run: Callable[..., Transcription]) -> Iterator[Frame]:
    """Let a model write down a sound; yields frames."""
    segments, cancel, begin = list[Segment](), Cancellation(), time.perf_counter()

    def frame() -> Frame:
        return segments_pane.segments_html(segments), status_line(reached(segments), WRITING)

    yield frame()
    made = yield from in_background(lambda: run(cancel=cancel, on_segment=segments.append), frame, cancel.cancel)
    yield segments_pane.segments_html(made.segments, made), status_line(figures(made, time.perf_counter() - begin), "finished")


def reached(segments: Sequence[Segment]) -> list[Fact]:
    """How far the sound is written down."""
    return [("written up to", f"{segments[-1].end:,.1f} s")] if segments else []


def figures(made: Transcription, seconds: float) -> list[Fact]:
    """Length, language and speed."""
    speed = f"{made.duration / seconds:,.1f} times as fast as the sound"
    return [("sound", f"{made.duration:,.1f} s"), ("language", escape(made.language)), ("took", f"{seconds:,.1f} s"), ("", speed)]


def at_rest(status: str) -> str:
    """The status at the end of a run. A stopped generator cannot yield a last frame: its status still promises more."""
    return status.replace(WRITING, ENDINGS["cancelled"])
