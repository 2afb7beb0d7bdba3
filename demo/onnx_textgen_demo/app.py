"""The page: what stands where, and which function answers which control.

`generation` does the work, `view` the looks of its results, `server` the opening to the world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gradio as gr

from onnx_textgen.generation_config import GenerationConfig, make_generation_config

from . import view
from .generation import MAX_PROMPT_CHARS, look_back, make_generate, settle

if TYPE_CHECKING:
    from onnx_textgen import Model

EXAMPLES = [
    "Once upon a time, there was a little rabbit who",
    "Tom and Lily found a small red door in the garden.",
    "Ben had a new red kite. He ran to the hill and",
    "One day, it began to rain",
]
LONGEST_TEXT = 1024  # A slider over a context of 100,000 tokens could not be set to anything in particular.


def make_page(model: Model) -> gr.Blocks:
    """The page for one loaded model, not yet served."""
    defaults = make_generation_config(model.manifest.generation, {})
    page: gr.Blocks
    with gr.Blocks(title=f"{model.manifest.name} - onnx-textgen", analytics_enabled=False, delete_cache=(3600, 3600)) as page:
        gr.HTML(view.header(model), apply_default_css=False)
        transcript = gr.State()
        with gr.Row():
            with gr.Column(scale=3, min_width=320):
                prompt, start, stop = prompt_controls()
                text, status, tokens = written()
            with gr.Column(scale=2, min_width=320):
                bars = gr.HTML(view.bars([], 0), container=True, padding=True, apply_default_css=False, elem_id="bars")
                sampling = sampling_controls(defaults, model.manifest.geometry.context_length)
        with gr.Accordion("Every token as a table", open=False, elem_id="table"):
            table = gr.Dataframe(headers=view.TABLE_HEADERS, datatype=["number", "str", "str"], interactive=False, show_label=False)
        run = gr.on(
            [start.click, prompt.submit],
            make_generate(model),
            inputs=[prompt, *sampling],
            outputs=[transcript, text, status, tokens, bars, table],
            show_progress="hidden",
            concurrency_limit=1,
            api_name="generate",
        )
        # Two steps: until the first is done, a frame on its way could overwrite what `settle` says.
        stopped = stop.click(None, cancels=[run])
        stopped.then(settle, transcript, [status, table], show_progress="hidden", queue=False, api_visibility="private")
        tokens.select(look_back, transcript, bars, show_progress="hidden", queue=False, api_visibility="private")
    return page


def prompt_controls() -> tuple[gr.Textbox, gr.Button, gr.Button]:
    """Prompt, examples, and the two buttons."""
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
        stop = gr.Button("Stop", variant="secondary", scale=1, min_width=80, elem_id="stop")
    return prompt, start, stop


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


def sampling_controls(defaults: GenerationConfig, context_length: int) -> list[gr.Slider | gr.Textbox]:
    """One control for each sampling option, in the order the handler takes them."""
    longest = min(context_length, LONGEST_TEXT)
    with gr.Accordion("Sampling", open=True, elem_id="sampling"):
        return [
            gr.Slider(
                1,
                longest,
                min(defaults.max_new_tokens, longest),
                step=1,
                precision=0,
                label="Max new tokens",
                info="The text ends here at the latest.",
            ),
            gr.Slider(0, 2, defaults.temperature, step=0.05, label="Temperature", info="Higher is bolder; 0 takes the likeliest."),
            gr.Slider(0, 200, defaults.top_k, step=1, precision=0, label="Top-k", info="Only the k likeliest tokens; 0 is all."),
            gr.Slider(0.01, 1, defaults.top_p, step=0.01, label="Top-p", info="Only the best that sum to this share."),
            gr.Slider(0, 1, defaults.min_p, step=0.01, label="Min-p", info="Only those at least this share of the best."),
            gr.Textbox(
                label="Seed",
                info="The same seed writes the same text.",
                placeholder="a new one each time",
                max_lines=1,
                elem_id="seed",
            ),
        ]
