"""The table of passes is what runs, and what the documentation shows."""

from __future__ import annotations

import re
from pathlib import Path

import onnx_ir as ir
import pytest

from onnx_textgen_export.passes.order import PASSES, Settings, pass_table, run_passes
from onnx_textgen_export.passes.quantization.options import DEFAULTS

ROOT = next(parent for parent in Path(__file__).resolve().parents if (parent / "pyproject.toml").is_file())


def test_the_documentation_shows_the_table_of_passes() -> None:
    page = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    shown = re.findall(r"<!-- passes -->\n(.*?)\n<!-- end of passes -->", page, flags=re.DOTALL)
    assert shown == [pass_table()], "paste what onnx_textgen_export.passes.order.pass_table() gives"


def test_stages_follow_each_other() -> None:
    stages = [each.stage for each in PASSES]
    assert list(dict.fromkeys(stages)) == ["trace", "optimize", "store"]
    assert stages == sorted(stages, key=["trace", "optimize", "store"].index)


@pytest.mark.parametrize(
    ("settings", "stored"),
    [
        (Settings("ort"), ["spell_softplus", "fuse_transposed_matmul"]),
        (Settings("standard"), []),
        (Settings("ort", precision="fp16"), ["to_float16", "spell_softplus"]),
        (
            Settings("ort", precision="int8", quantization=DEFAULTS["int8"]),
            ["quantize", "spell_softplus", "fuse_transposed_matmul"],
        ),
    ],
)
def test_a_precision_takes_the_passes_that_its_conditions_name(settings: Settings, stored: list[str]) -> None:
    always = ["remove_unused", "settle_linear_layers"]
    names = [each.name for each in PASSES if each.stage == "store" and each.when.holds(settings)]
    assert names == ["record_linear_layers", *stored, *always]


def test_an_empty_graph_goes_through_every_stage() -> None:
    model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 23}), ir_version=10)
    for stage in ("trace", "optimize", "store"):
        run_passes(stage, model, Settings("ort", 64))
    assert list(model.graph) == []
