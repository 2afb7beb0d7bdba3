"""The embedded model that reads numbers, and pictures of numbers."""

from __future__ import annotations

import pytest

import onnx_textgen
from onnx_textgen import Model

pytest.importorskip("PIL")


@pytest.fixture(scope="session")
def digits() -> Model:
    return onnx_textgen.load("digits", threads=1, device="cpu")
