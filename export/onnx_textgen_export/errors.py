"""The exporter's error, and how errors of other libraries become it; further error types are the runtime's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from onnx_textgen.errors import ModelError, OnnxTextgenError, PackageError, first_line
from onnx_textgen.requirements import wrong_version


class ExportError(OnnxTextgenError):
    """A model that cannot be exported, or whose export turned out wrong."""


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
            raise ExportError('a checkpoint needs transformers; install it with: pip install "onnx-textgen[export]"') from error
        raise
