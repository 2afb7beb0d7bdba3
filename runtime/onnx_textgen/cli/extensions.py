"""Commands of other packages: `export`, `demo`, `serve`, and any in the entry-point group `onnx_textgen.commands`.

Each is a typer app that is imported only when its command runs, so the runtime does not depend on them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer

from ..errors import OnnxTextgenError
from ..requirements import wrong_version

GROUP = "onnx_textgen.commands"
SUMMARIES = {
    "add-adapter": "Add a LoRA adapter to a model folder.",
    "remove-adapter": "Remove a LoRA adapter from a model folder.",
    "export": "Make a model folder from a PyTorch decoder.",
    "demo": "Generate text in a web page on this machine.",
    "serve": "Answer OpenAI's API over HTTP.",
}
EXTRAS = {"add-adapter": "export", "remove-adapter": "export"}
"""The extra that a command needs, if it is not called like the command."""
EXTRA_MODULES = {
    "export": frozenset(
        {"torch", "transformers", "onnx", "onnxscript", "onnx_ir", "safetensors", "sentencepiece"}
        | {"google", "regex", "huggingface_hub"}
    ),
    "demo": frozenset({"gradio"}),
    "serve": frozenset({"fastapi", "uvicorn", "prometheus_client"}),
}


class ExtensionError(OnnxTextgenError):
    """A command whose package is missing or incomplete."""


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
            command = typer.main.get_command(point.load())
            with command.make_context(name, list(context.args), parent=context.parent) as inner:
                command.invoke(inner)

    return run_extension


def load_function(group: str, wanting: str) -> Any:  # noqa: ANN401 - the group's module says what its functions take
    """Load the first function of an entry-point group, which the exporter adds.

    Raises `ExtensionError`, which begins with `wanting`, if the exporter is missing or incomplete.
    """
    points = sorted(entry_points(group=group), key=lambda point: point.name)
    if not points:
        raise ExtensionError(f"{wanting} needs the exporter; {remedy('export')}")
    with explain_missing(wanting, "export"):
        return points[0].load()


@contextlib.contextmanager
def explain_missing(wanting: str, extra: str) -> Iterator[None]:
    """Raise an `ExtensionError` that says how to install a module of an extra that is missing or has the wrong version."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        if (reason := wrong_version(error)) is not None:
            raise ExtensionError(f"{wanting} cannot start: {reason}") from error
        if not isinstance(error, ModuleNotFoundError) or (error.name or "").partition(".")[0] not in EXTRA_MODULES.get(extra, ()):
            raise  # the module is not one of the extra: it is missing in a user's code
        raise ExtensionError(f"{wanting} needs {error.name}, which is not installed; {remedy(extra)}") from error


def remedy(name: str) -> str:
    """The command that installs an extra."""
    return f'add it with: pip install "onnx-textgen[{name}]"'
