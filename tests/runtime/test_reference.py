"""The API reference can be written from the docstrings, and leaves no public name without one."""

import inspect
from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen.options.generation_config import OPTION_NAMES


def test_every_public_name_is_in_the_reference(tmp_path: Path) -> None:
    pdoc = pytest.importorskip("pdoc")
    pdoc.pdoc("onnx_textgen", output_directory=tmp_path)
    page = (tmp_path / "onnx_textgen.html").read_text(encoding="utf-8")
    for name in onnx_textgen.__all__:
        assert f'id="{name}"' in page
        thing = getattr(onnx_textgen, name)
        assert inspect.getdoc(thing)
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                if callable(value) and not member.startswith("_"):
                    assert inspect.getdoc(value), f"{name}.{member}"
    for name in OPTION_NAMES:
        assert f'id="GenerationConfig.{name}"' in page
