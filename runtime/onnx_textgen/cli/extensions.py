"""Commands of other packages: `adapter`, `export`, `demo`, `serve`, and any in the entry-point group `onnx_textgen.commands`.

Each is a typer app that is imported only when its command runs, so the runtime does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

import typer

from ..extras import ExtensionError, explain_missing, remedy
from . import interrupts

GROUP = "onnx_textgen.commands"
SUMMARIES = {
    "adapter": "Add a LoRA adapter to a model folder, or remove one.",
    "export": "Make a model folder from a PyTorch decoder.",
    "demo": "Generate text in a web page on this machine.",
    "serve": "Answer OpenAI's API over HTTP.",
}
EXTRAS = {"adapter": "export"}
"""The extra that a command needs, if it is not called like the command."""


def add_extensions(app: typer.Typer) -> None:
    """Add a command for every entry point of the group, and for each known command even if it is not installed."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    # Every argument, also -h, is passed to the app of the command.
    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    for name in sorted(SUMMARIES.keys() | found.keys()):
        summary = SUMMARIES.get(name) or f"Added by {found[name].value}."
        app.command(name, help=summary, context_settings=settings)(forward(name, found.get(name)))


def forward(name: str, point: EntryPoint | None) -> Callable[[typer.Context], None]:
    """Make a command that passes all its arguments to the app of an entry point."""

    def run_extension(context: typer.Context) -> None:
        if point is None:
            raise ExtensionError(f"the command {name} is not installed; {remedy(EXTRAS.get(name, name))}")
        with explain_missing(f"the command {name}", EXTRAS.get(name, name)):
            with interrupts.ending_at_once():
                command = typer.main.get_command(point.load())
            with command.make_context(name, list(context.args), parent=context.parent) as inner:
                command.invoke(inner)

    return run_extension
