"""The options of an export: one list of names for Python, and errors before anything is traced."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from onnx_textgen_export import ExportError, export
from onnx_textgen_export.calibration.attempts import Budget
from onnx_textgen_export.exporting.options import ExportKeywords, ExportOptions
from onnx_textgen_export.passes.quantization.options import Quantization


def test_the_keywords_of_export_are_the_fields_of_its_options() -> None:
    fields = {field.name for field in dataclasses.fields(ExportOptions)}
    assert typing.get_type_hints(ExportKeywords) == {
        name: kind for name, kind in typing.get_type_hints(ExportOptions).items() if name in fields
    }


def test_an_unknown_keyword_is_an_error() -> None:
    with pytest.raises(TypeError, match="precison"):
        export("nowhere", "out", precison="int4")


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ExportError, match="there is no precision int5"):
        ExportOptions(precision="int5")
    with pytest.raises(ExportError, match="take --precision int4"):
        ExportOptions(precision="int8", quantization=Quantization(4))
    with pytest.raises(ExportError, match="fp32 is not quantised"):
        ExportOptions(budget=Budget(max_kl=0.1)).for_source(is_quantized=False, embeds=False).quantization_for(64)


def test_a_budget_without_calibration_searches_scales_instead() -> None:
    chosen = ExportOptions(precision="int4", budget=Budget(calibrates=False)).quantization_for(64)
    assert chosen is not None
    assert chosen.method == "k_quant"
