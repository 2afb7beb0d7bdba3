"""The panel that fetches a model by its short name and exports it, as `onnx-textgen pull` does.

That runs in another process: its end frees PyTorch's memory, and it can be stopped at any time.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gradio as gr

from onnx_textgen.errors import OnnxTextgenError, OptionError
from onnx_textgen.options.checks import shown
from onnx_textgen.package.short_names import short_names

from . import view
from .buttons import RunButtons, at_the_end
from .limits import OWN, QUICK
from .models import ModelRegistry, Opener

OpenerOf = Callable[[str], Opener]
"""Makes the function that loads the model of a name."""
FETCHING: dict[str, Any] = {**OWN, "concurrency_limit": 1, "concurrency_id": "fetch"}
"""Settings of the listener that fetches: one model at a time, while texts are generated."""
POLL_SECONDS = 0.3
WAIT_SECONDS = 10
"""For a stopped process to remove what it wrote."""
ERROR = "error: "


def make_fetch_panel(registry: ModelRegistry, picker: gr.Dropdown, opener_of: OpenerOf) -> None:
    """Add the panel in the current Gradio context; a fetched model joins the registry and the choices of the picker."""
    names = [name for name, entry in short_names().items() if entry.writes]
    first = names[0]
    with gr.Accordion("Fetch a model", open=False, elem_id="fetch"):
        choice = gr.Dropdown(names, value=first, label="Model to fetch", show_label=False, container=False, filterable=False)
        status = gr.HTML(describe(first), apply_default_css=False)
        with gr.Row():
            start = gr.Button("Fetch", size="sm", min_width=60, elem_id="fetch-start")
            stop = gr.Button("Stop", size="sm", min_width=60, interactive=False, elem_id="fetch-stop")
    buttons = RunButtons((start,), stop)

    def fetch(name: str) -> Iterator[tuple[str, Any]]:
        try:
            for line in lines_of(command(name)):
                yield view.status_line([], line), gr.skip()
        except OnnxTextgenError as error:
            yield view.status_line([], str(error), is_problem=True), gr.skip()
            return
        registry.add(name, opener_of(name))
        yield view.status_line([], f"{name} is ready: choose it under Model"), gr.update(choices=registry.names)

    pressed = start.click(buttons.running, None, buttons.outputs, **QUICK)
    run = pressed.then(fetch, choice, [status, picker], **FETCHING)
    at_the_end(run, buttons.at_rest, [], buttons.outputs)
    stop.click(lambda: view.status_line([], "stopped by you"), None, status, cancels=[run], **QUICK)
    choice.input(describe, choice, status, **QUICK)


def describe(name: str) -> str:
    """What a model is good at, its licence, and how much is fetched, as HTML."""
    entry = short_names()[name]
    return view.status_line([], f"{entry.model}: {entry.good_at}. {entry.licence}, {entry.megabytes:,} MB")


def command(name: str) -> list[str]:
    """The command that fetches a model; raises `OptionError` for a name that is not in the panel."""
    if not isinstance(name, str) or name not in short_names():
        raise OptionError(f"there is no short name {shown(name)}; take one of: {', '.join(short_names())}")
    return [sys.executable, "-m", "onnx_textgen.cli", "pull", name]


def lines_of(arguments: Sequence[str]) -> Iterator[str]:
    """Run a command, and yield the last line of its stderr at intervals.

    Raises `OnnxTextgenError` if the command fails. When the iterator is closed, the command is ended.
    """
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(arguments, **pipes, text=True, errors="replace")  # as text a line ends with "\r" too
    output, last = process.stderr, ["starting ..."]
    assert output is not None, "it is a pipe"

    def read() -> None:
        for line in output:
            if line.strip():
                last[0] = line.strip()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while reader.is_alive():
            yield last[0]
            reader.join(POLL_SECONDS)
        if code := process.wait():
            is_error = last[0].startswith(ERROR)
            raise OnnxTextgenError(last[0].removeprefix(ERROR) if is_error else f"it ended with code {code} after: {last[0]}")
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(WAIT_SECONDS)
            except subprocess.TimeoutExpired:  # the next export removes what is left
                process.kill()
        reader.join()
        output.close()
