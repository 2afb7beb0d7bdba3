"""The exporter's error, and how errors of other libraries become it; further error types are the runtime's."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from onnx_textgen.errors import ModelError, OnnxTextgenError, PackageError, first_line
from onnx_textgen.extras import remedy
from onnx_textgen.requirements import wrong_version

CONTROLS = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")
LONG_WORD = re.compile(r"\S{400,}")
"""Longer than the path of a file; only a name in a damaged file is so long."""


class ExportError(OnnxTextgenError):
    """A model that cannot be exported, or whose export turned out wrong; names of its files are shown without escapes, and cut."""

    def __init__(self, message: str) -> None:
        super().__init__(LONG_WORD.sub(lambda word: f"{word[0][:100]}...", message).translate(CONTROLS))


def innermost(error: BaseException) -> BaseException:
    """The last of an error's causes: what the model's own code raised, without what the tracer wraps around it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


@contextlib.contextmanager
def as_export_error() -> Iterator[None]:
    """Turn the runtime's errors about a package into `ExportError`."""
    try:
        yield
    except (ModelError, PackageError) as error:
        raise ExportError(f"the exported graph does not run: {first_line(error)}") from error


@contextlib.contextmanager
def failing_as(what: str, instead: str = "") -> Iterator[None]:
    """Turn whatever another library raises for a damaged file into `ExportError`: its errors have no common base."""
    try:
        yield
    except OnnxTextgenError:
        raise
    except Exception as error:
        raise ExportError(f"{what}: {first_line(error)}{instead}") from error


@contextlib.contextmanager
def named_versions() -> Iterator[None]:
    """Raise `ExportError` where an import fails because a library is missing, too old or too new; the message names the version.

    Wrap it around imports of names that libraries move: transformers', and private ones of torch and onnxscript. They are imported
    only where they are needed, so that a module of the user's own can be exported without transformers.
    """
    try:
        yield
    except (ImportError, AttributeError) as error:
        if (reason := wrong_version(error)) is not None:
            raise ExportError(reason) from error
        if isinstance(error, ModuleNotFoundError) and error.name == "transformers":
            raise ExportError(f"a checkpoint needs transformers; {remedy('export')}") from error
        raise
