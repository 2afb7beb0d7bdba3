"""The exporter's own error; the rest are the runtime's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from onnx_textgen.errors import ModelError, OnnxTextgenError, PackageError, first_line
from onnx_textgen.requirements import wrong_version


class ExportError(OnnxTextgenError):
    """A model that cannot be exported, or whose export turned out wrong."""


def innermost(error: BaseException) -> BaseException:
    """The cause of the cause ... of an error: what the model's own code raised, under all that the tracer wraps it in."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


@contextlib.contextmanager
def as_export_error() -> Iterator[None]:
    """Raise what the runtime says of a package as an `ExportError`."""
    try:
        yield
    except (ModelError, PackageError) as error:
        raise ExportError(f"the exported graph does not run: {first_line(error)}") from error


@contextlib.contextmanager
def named_versions() -> Iterator[None]:
    """Raises `ExportError` for a library that is missing, too old or too new, and says which version does."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        if (reason := wrong_version(error)) is not None:
            raise ExportError(reason) from error
        if isinstance(error, ModuleNotFoundError) and error.name == "transformers":
            raise ExportError('a checkpoint needs transformers; install it with: pip install "onnx-textgen[export]"') from error
        raise
