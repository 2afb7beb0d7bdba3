"""The exporter's own error; the rest are the runtime's."""

from onnx_textgen.errors import OnnxTextgenError


class ExportError(OnnxTextgenError):
    """A model that cannot be exported, or whose export turned out wrong."""


def innermost(error: BaseException) -> BaseException:
    """The cause of the cause ... of an error: what the model's own code raised, under all that the tracer wraps it in."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
