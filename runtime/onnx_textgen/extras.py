"""Optional parts of the installation, and one line on how to add a part that is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .errors import OnnxTextgenError
from .installation import add_extra
from .requirements import wrong_version

EXTRA_MODULES = {
    "export": frozenset(
        {"torch", "transformers", "onnx", "onnxscript", "onnx_ir", "safetensors", "sentencepiece"}
        | {"google", "regex", "huggingface_hub"}
    ),
    "demo": frozenset({"gradio"}),
    "images": frozenset({"PIL"}),
    "serve": frozenset({"fastapi", "uvicorn", "prometheus_client"}),
}


class ExtensionError(OnnxTextgenError):
    """A command whose package is missing or incomplete."""


def load_function(group: str, wanting: str) -> Any:  # noqa: ANN401 - the group's module says what its functions take
    """Load the first function of an entry-point group, which the exporter adds.

    Raises `ExtensionError`, which begins with `wanting`, if the exporter is missing or incomplete.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - its import takes a twentieth of the time in which a model opens

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
    return f"add it with: {add_extra(name)}"
