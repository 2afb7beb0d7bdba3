"""The tab Measure: the speed of the picked model on this machine, at growing prompt lengths, as plots and a table."""

from __future__ import annotations

import functools
import platform
import statistics
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from onnx_textgen import Cancellation
from onnx_textgen.diagnostics.benchmark import cache_bytes, longest_prompt, peak_memory_mib, time_round
from onnx_textgen.errors import OnnxTextgenError

from ..background import in_background
from ..buttons import RunButtons, at_the_end
from ..limits import QUICK, RUNNING
from ..models import ModelRegistry
from ..pictures.plots import line_plot

if TYPE_CHECKING:
    from gradio.events import Dependency

    from onnx_textgen import Model

NEW_TOKENS = 32
SHORTEST = 32
LONGEST = 4096
"""Prompt lengths double from `SHORTEST` to at most `LONGEST`, as far as the context allows."""
COLUMNS = ["Prompt tokens", "Prefill tokens/s", "Decode tokens/s", "First token ms", "Cache MiB"]

PLOTS = {1: "Prefill: reading a prompt, tokens/s", 2: "Decode: writing after it, tokens/s", 4: "Cache, MiB"}
"""Titles of the plots, by column."""

Frame = tuple[Any, ...]
"""Values for the components, in this order: note, plots, table."""


def make_tab(registry: ModelRegistry, picker: gr.Dropdown, picked: Dependency) -> None:
    """Add the tab's components in the current Gradio context, and their listeners."""
    gr.Markdown(
        f"Prompts of pseudo-random tokens, each followed by {NEW_TOKENS} greedy ones on a fresh cache; the functions are those of "
        "`onnx-textgen bench`. Other work on this machine, other tabs of this page included, slows it down."
    )
    explanation = "The figures are their medians. A first round warms up and is not counted."
    rounds = gr.Slider(1, 5, 2, step=1, precision=0, label="Rounds", info=explanation)
    with gr.Row():
        start = gr.Button("Start", variant="primary", scale=2, min_width=120, elem_id="measure")
        stop = gr.Button("Stop", scale=1, min_width=80, interactive=False, elem_id="measure-stop")
    note = gr.Markdown("", elem_id="measure-note")
    plots = gr.HTML("", apply_default_css=False, elem_id="plots")
    table = gr.HTML("", apply_default_css=False, elem_id="measure-table")
    shown, buttons = [note, plots, table], RunButtons((start,), stop)

    def measure(name: str, count: int) -> Iterator[Frame]:
        try:
            model = registry.model(name)
            rows: list[list[float]] = []
            for length in lengths(longest_prompt(model.manifest, NEW_TOKENS)):
                cancel = Cancellation()
                work = functools.partial(measured, model, length, count, cancel)
                waiting = functools.partial(tuple[Any, ...], [f"measuring a prompt of {length:,} tokens ...", gr.skip(), gr.skip()])
                rows.append((yield from in_background(work, waiting, cancel.cancel)))
                yield f"measured up to {length:,} tokens ...", draw(rows), draw_table(rows)
            yield conditions(name, model), gr.skip(), gr.skip()
        except OnnxTextgenError as error:
            yield escape(str(error)), gr.skip(), gr.skip()
            raise gr.Error(escape(str(error)), print_exception=False) from error

    pressed = start.click(buttons.running, None, buttons.outputs, **QUICK)
    run = pressed.then(measure, [picker, rounds], shown, **RUNNING)
    at_the_end(run, lambda said: [at_rest(said), *buttons.at_rest()], [note], [note, *buttons.outputs])
    stop.click(None, cancels=[run])
    picked.then(lambda: ("", "", ""), None, shown, cancels=[run], **QUICK)


def at_rest(note: str) -> str:
    """The note at the end of a run. A stopped generator cannot yield a last frame: its note still promises more."""
    return "stopped by you" if note.endswith("...") else note


def lengths(most: int) -> list[int]:
    """Prompt lengths up to the most tokens that leave room for the new ones.

    >>> lengths(480)
    [32, 64, 128, 256, 480]
    """
    most = min(LONGEST, most)
    doubling = [SHORTEST * 2**power for power in range(16) if SHORTEST * 2**power < most]
    return [*doubling, most] if most > 0 else []


def measured(model: Model, length: int, count: int, cancel: Cancellation) -> list[float]:
    """A row of the table: medians over `count` rounds, after one that does not count."""
    ids = np.random.default_rng(0).integers(model.manifest.geometry.vocab_size, size=length).tolist()
    timed = [time_round(model, ids, NEW_TOKENS, cancel=cancel) for _ in range(count + 1)][1:]
    prefill, first, decode = (
        statistics.median(getattr(one, name) for one in timed)
        for name in ("prefill_seconds", "first_token_seconds", "decode_seconds")
    )
    cache = cache_bytes(model, length, NEW_TOKENS) / 2**20
    return [length, round(length / prefill, 1), round((NEW_TOKENS - 1) / decode, 1), round(1000 * first, 2), round(cache, 3)]


def conditions(name: str, model: Model) -> str:
    """The conditions of the measurement."""
    peak = peak_memory_mib()
    memory = f"; this process used at most {peak:,.0f} MiB" if peak else ""
    system = f"{platform.machine()} {platform.system()}"
    return f"{escape(name)}, {model.manifest.precision_name}, {model.device}, {system}{memory}."


def draw_table(rows: Sequence[Sequence[float]]) -> str:
    """All numbers, a line for each prompt length."""
    heads = "".join(f"<th scope=col>{escape(name)}</th>" for name in COLUMNS)
    lines = "".join(f"<tr>{''.join(f'<td>{number:,}</td>' for number in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0"><table class="facts"><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'
    )


def draw(rows: Sequence[Sequence[float]]) -> str:
    """The plots of the table's rows."""
    across = "prompt tokens, doubling"
    return "".join(
        line_plot([(row[0], row[column]) for row in rows], title=title, across=across) for column, title in PLOTS.items()
    )
