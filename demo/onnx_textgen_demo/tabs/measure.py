"""The tab Measure: how fast the picked model runs on this machine, at several lengths of its context, as plots and a table."""

from __future__ import annotations

import functools
import platform
import statistics
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np
import pandas as pd

from onnx_textgen import Cancellation
from onnx_textgen.bench import peak_memory_mib, time_round
from onnx_textgen.errors import OnnxTextgenError

from ..background import in_background
from ..limits import QUICK, RUNNING
from ..shelf import Shelf

if TYPE_CHECKING:
    from gradio.events import Dependency

    from onnx_textgen import Model

NEW_TOKENS = 32
SHORTEST = 32
LONGEST = 4096
"""Prompts are as long as this, twice that and so on, as far as the context has room."""
COLUMNS = ["Prompt tokens", "Prefill tokens/s", "Decode tokens/s", "First token ms", "Cache MiB"]

PLOTS = {COLUMNS[1]: "Prefill: reading a prompt", COLUMNS[2]: "Decode: writing after it", COLUMNS[4]: "Cache"}


def make_tab(shelf: Shelf, picker: gr.Dropdown, picked: Dependency) -> None:
    """Put the tab's components where Gradio stands, and let them answer."""
    gr.Markdown(
        f"Prompts of pseudo-random tokens, each followed by {NEW_TOKENS} greedy ones on a fresh cache; the functions are those of "
        "`onnx-textgen bench`. Other work on this machine, other tabs of this page included, slows it down."
    )
    with gr.Row():
        rounds = gr.Slider(1, 5, 2, step=1, precision=0, label="Rounds", info="Medians of so many; one more goes before.", scale=3)
        start = gr.Button("Start", variant="primary", scale=1, min_width=120, elem_id="measure")
        stop = gr.Button("Stop", scale=1, min_width=80, elem_id="measure-stop")
    note = gr.Markdown("", elem_id="measure-note")
    with gr.Row(elem_id="plots"):
        plots = [
            gr.LinePlot(empty(), x=COLUMNS[0], y=column, title=title, height=260, min_width=280) for column, title in PLOTS.items()
        ]
    table = gr.Dataframe(headers=COLUMNS, interactive=False, label="All numbers", elem_id="measure-table")

    def measure(name: str, count: int) -> Iterator[tuple[Any, ...]]:
        try:
            model = shelf.model(name)
            rows: list[list[float]] = []
            for length in lengths(model.manifest.geometry.context_length):
                cancel = Cancellation()
                work = in_background(functools.partial(measured, model, length, count, cancel), cancel.cancel)
                try:
                    while True:
                        next(work)
                        yield (f"measuring a prompt of {length:,} tokens ...", *[gr.skip()] * 4)
                except StopIteration as end:
                    rows.append(end.value)
                finally:
                    work.close()
                frame = pd.DataFrame(rows, columns=COLUMNS)
                yield (f"measured up to {length:,} tokens", *[from_zero(frame, column) for column in PLOTS], frame)
            yield (conditions(name, model), *[gr.skip()] * 4)
        except OnnxTextgenError as error:
            yield (escape(str(error)), *[gr.skip()] * 4)
            raise gr.Error(escape(str(error)), print_exception=False) from error

    run = start.click(measure, [picker, rounds], [note, *plots, table], **RUNNING)
    stop.click(None, cancels=[run]).then(lambda: "stopped by you", None, note, **QUICK)
    picked.then(lambda: ("", *[empty()] * 4), None, [note, *plots, table], **QUICK)


def lengths(context_length: int) -> list[int]:
    """Prompt lengths that leave room for the new tokens.

    >>> lengths(512)
    [32, 64, 128, 256, 480]
    """
    most = min(LONGEST, context_length - NEW_TOKENS)
    doubling = [SHORTEST * 2**power for power in range(16) if SHORTEST * 2**power < most]
    return [*doubling, most] if most > 0 else []


def measured(model: Model, length: int, count: int, cancel: Cancellation) -> list[float]:
    """A row of the table: medians over `count` rounds, after one that is not counted."""
    ids = np.random.default_rng(0).integers(model.manifest.geometry.vocab_size, size=length).tolist()
    timed = [time_round(model, ids, NEW_TOKENS, cancel=cancel) for _ in range(count + 1)][1:]
    prefill, first, decode = (
        statistics.median(getattr(one, name) for one in timed)
        for name in ("prefill_seconds", "first_token_seconds", "decode_seconds")
    )
    cache = model.memory(length + NEW_TOKENS).total_bytes / 2**20
    return [length, round(length / prefill, 1), round((NEW_TOKENS - 1) / decode, 1), round(1000 * first, 2), round(cache, 3)]


def conditions(name: str, model: Model) -> str:
    """Where the numbers hold."""
    peak = peak_memory_mib()
    memory = f"; this process held {peak:,.0f} MiB at most" if peak else ""
    system = f"{platform.machine()} {platform.system()}"
    return f"{escape(name)}, {model.manifest.precision}, {model.device}, {system}{memory}."


def from_zero(frame: pd.DataFrame, column: str) -> dict[str, Any]:
    """New values for a plot; cut off below, an axis would make small differences look large."""
    update: dict[str, Any] = gr.update(value=frame, y_lim=[0, 1.1 * float(frame[column].max())])
    return update


def empty() -> pd.DataFrame:
    """A table without rows."""
    return pd.DataFrame({column: pd.Series(dtype=float) for column in COLUMNS})
