"""The page writes texts: a text encoder is refused by name before anything is drawn."""

from pathlib import Path

import pytest

pytest.importorskip("onnx")

import onnx_textgen
from onnx_textgen.errors import OptionError
from onnx_textgen.package.short_names import short_names
from onnx_textgen_demo.models import ModelRegistry
from support.text_encoder_package import write_package


def test_it_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = write_package(tmp_path / "letters")
    registry = ModelRegistry({"letters": lambda: onnx_textgen.load(folder, device="cpu", threads=1)})
    with pytest.raises(OptionError, match="letters is an encoder, which writes no text; serve it with: onnx-textgen serve letters"):
        registry.model()


def test_the_page_offers_only_models_that_write() -> None:
    assert [name for name, entry in short_names().items() if not entry.writes] == ["minilm"]
