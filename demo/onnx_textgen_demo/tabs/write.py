"""The tab Write: a prompt is continued while one watches, and gone on from in another way at any token."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr

from onnx_textgen.errors import OnnxTextgenError

from .. import view
from ..limits import MAX_PROMPT_CHARS, QUICK, RUNNING, checked
from ..sampling_controls import SamplingControls, make_sampling_controls
from ..shelf import Shelf
from ..transcript import Transcript

if TYPE_CHECKING:
    from gradio.events import Dependency

EXAMPLES = [
    "Once upon a time, there was a little rabbit who",
    "Tom and Lily found a small red door in the garden.",
    "Ben had a new red kite. He ran to the hill and",
    "One day, it began to rain",
]
RIVALS = 10
"""Bars of the next-token distribution."""
FRAME_SECONDS = 0.08
SECONDS_PER_TOKEN = 0.0005
"""A small model writes faster than a browser redraws, and a redraw costs more the longer the text: frames wait as long as this."""

Frame = tuple[Any, ...]
"""Values for the components, in this order: transcript, text, status, tokens, bars, table."""


def make_tab(shelf: Shelf, picker: gr.Dropdown, picked: Dependency) -> None:
    """Put the tab's components where Gradio stands, and let them answer."""
    transcript = gr.State()
    with gr.Row():
        with gr.Column(scale=3, min_width=320):
            prompt, start, again, stop = prompt_controls()
            text, status, tokens = written()
        with gr.Column(scale=2, min_width=320):
            bars = gr.HTML(
                view.bars([], 0),
                js_on_load=view.CHOICE_EVENTS,
                container=True,
                padding=True,
                apply_default_css=False,
                elem_id="bars",
            )
            with gr.Accordion("Sampling", open=True, elem_id="sampling"):
                sampling = make_sampling_controls(shelf.model())
    with gr.Accordion("Every token as a table", open=False, elem_id="table"):
        table = gr.Dataframe(headers=view.TABLE_HEADERS, datatype=["number", "str", "str"], interactive=False, show_label=False)
    shown = [transcript, text, status, tokens, bars, table]
    generate, branch = make_generate(shelf, sampling), make_branch(sampling)
    running = {"outputs": shown, **RUNNING}

    run = gr.on([start.click, prompt.submit], generate, inputs=[picker, prompt, *sampling.inputs], **running)
    emptied = again.click(lambda: "", None, sampling.seed, **QUICK)
    run_again = emptied.then(generate, inputs=[picker, prompt, *sampling.inputs], **running)
    run_branch = bars.select(branch, inputs=[transcript, *sampling.inputs], **running)
    # Two steps: until the first is done, a frame on its way could overwrite what `settle` says.
    stopped = stop.click(None, cancels=[run, run_again, run_branch])
    stopped.then(settle, transcript, [status, bars, table], **QUICK)
    tokens.select(look_back, transcript, bars, **QUICK)
    picked.then(lambda name: sampling.defaults_of(shelf.loaded(name)), picker, sampling.inputs, **QUICK)


def prompt_controls() -> tuple[gr.Textbox, gr.Button, gr.Button, gr.Button]:
    """Prompt, examples, and the buttons."""
    prompt = gr.Textbox(
        EXAMPLES[0],
        label="Prompt",
        info="The model goes on from here. Shift+Enter generates.",
        lines=3,
        max_lines=12,
        max_length=MAX_PROMPT_CHARS,
        elem_id="prompt",
    )
    gr.Examples([[example] for example in EXAMPLES], prompt, label="Or begin with", api_visibility="private", elem_id="examples")
    with gr.Row():
        start = gr.Button("Generate", variant="primary", scale=2, min_width=120, elem_id="generate")
        again = gr.Button("New seed", variant="secondary", scale=1, min_width=100, elem_id="again")
        stop = gr.Button("Stop", variant="secondary", scale=1, min_width=80, elem_id="stop")
    return prompt, start, again, stop


def written() -> tuple[gr.Textbox, gr.HTML, gr.HighlightedText]:
    """What the model wrote: as text, in numbers, and token by token."""
    text = gr.Textbox(label="Text", lines=7, max_lines=14, interactive=False, buttons=["copy"], elem_id="text")
    status = gr.HTML(view.status(None), apply_default_css=False, elem_id="status")
    tokens = gr.HighlightedText(
        label="Tokens by probability - press one to see its rivals",
        color_map=view.BAND_COLORS,
        show_legend=True,
        combine_adjacent=False,
        show_whitespaces=True,
        elem_id="tokens",
    )
    return text, status, tokens


def make_generate(shelf: Shelf, sampling: SamplingControls) -> Callable[..., Iterator[Frame]]:
    """What the button Generate does. Closing its generator, as Gradio does on Stop and when the client goes, ends the model's."""

    def generate(name: str, prompt: str, *values: Any) -> Iterator[Frame]:  # noqa: ANN401 - what the components hold
        transcript = None
        try:
            model, options = shelf.model(name), sampling.read_options(*values)
            transcript = Transcript(model, options["seed"])
            transcript.prompt_ids = model.encode(checked(prompt))
            yield from follow(transcript, options)
        except OnnxTextgenError as error:
            yield frame(transcript, problem=str(error), final=True)
            raise gr.Error(escape(str(error)), print_exception=False) from error

    return generate


def make_branch(sampling: SamplingControls) -> Callable[..., Iterator[Frame]]:
    """What choosing a rival does: the text up to its place stays, and goes on from the rival. No rival: look only."""

    def branch(transcript: Transcript | None, event: gr.SelectData, *values: Any) -> Iterator[Frame]:  # noqa: ANN401 - likewise
        if transcript is None or not transcript.tokens:
            return
        try:
            position, rank = event.index
            if rank is None:  # another token is looked at, nothing is written
                yield (*[gr.skip()] * 4, view.bars(transcript.tokens, int(position), choosable=True), gr.skip())
                return
            other = transcript.branch(int(position), int(rank))
            options = sampling.read_options(*values)
            other.seed = options["seed"]
            if other.finish_reason:
                yield frame(other, final=True)
            else:
                yield from follow(other, options)
        except OnnxTextgenError as error:
            yield frame(transcript, problem=str(error), final=True)
            raise gr.Error(escape(str(error)), print_exception=False) from error

    return branch


def follow(transcript: Transcript, options: Mapping[str, Any]) -> Iterator[Frame]:
    """Let the model go on from a transcript, frame by frame."""
    # The runtime keeps keys and values of prompts: what a branch shares with an earlier one is not computed again.
    stream = transcript.model.stream(transcript.token_ids, logprobs=RIVALS, **options)
    yield frame(transcript)
    with contextlib.closing(stream) as chunks:
        shown = 0.0
        for chunk in chunks:
            transcript.add(chunk)
            if time.perf_counter() - shown >= FRAME_SECONDS + SECONDS_PER_TOKEN * len(transcript.tokens):
                yield frame(transcript)
                shown = time.perf_counter()
    yield frame(transcript, final=True)


def frame(transcript: Transcript | None, *, problem: str | None = None, final: bool = False) -> Frame:
    """The page as it stands; the table waits for the end, since redrawing hundreds of rows many times a second stutters."""
    tokens = transcript.tokens if transcript else []
    return (
        transcript,
        transcript.text if transcript else "",
        view.status(transcript, problem=problem),
        view.spans(tokens),
        view.bars(tokens, len(tokens), choosable=final),
        view.rows(tokens) if final else gr.skip(),
    )


def settle(transcript: Transcript | None) -> tuple[str, str, list[list[str | int]]]:
    """Status, bars and table after Stop, which leaves a generation no chance to draw its own last frame."""
    tokens = transcript.tokens if transcript else []
    return view.status(transcript, stopped=True), view.bars(tokens, len(tokens), choosable=True), view.rows(tokens)


def look_back(transcript: Transcript | None, event: gr.SelectData) -> str:
    """The bars of the token a person pressed."""
    return view.bars(transcript.tokens if transcript else [], event.index + 1, choosable=True)
