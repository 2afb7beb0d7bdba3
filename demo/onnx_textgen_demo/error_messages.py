"""Errors of the library as messages of the page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from html import escape

import gradio as gr

from onnx_textgen.errors import OnnxTextgenError


@contextlib.contextmanager
def shown_errors() -> Iterator[None]:
    """Show an error of the library on the page."""
    try:
        yield
    except OnnxTextgenError as error:
        raise gr.Error(escape(str(error)), print_exception=False) from error
