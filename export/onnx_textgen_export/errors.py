"""The exporter's own error; the rest are the runtime's."""

from onnx_textgen.errors import OnnxTextgenError


class ExportError(OnnxTextgenError):
    """A model that cannot be exported, or whose export turned out wrong."""
