"""Products whose rounded inputs cost too much compute in float32, and no others."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from onnx_textgen.package.manifest import GRAPH
from onnx_textgen_export import export
from onnx_textgen_export.calibration import activations
from onnx_textgen_export.calibration.activations import compare_with_unrounded, is_costly, layer_name
from onnx_textgen_export.calibration.quality import Measures
from onnx_textgen_export.exporting.options import Budget, Quantization
from support.gguf_files import tiny_model

MASSIVE = "model.layers.1.mlp.down_proj"


def with_massive_inputs(model: Any, *, token: int) -> Any:
    """A model in which a token's inputs of one layer are huge, at a place whose weights are zero: their neighbours are lost."""
    layer = model.model.layers[1].mlp
    with torch.no_grad():
        model.model.embed_tokens.weight[token] *= 50  # so that layer 1 sees the token almost alone
        layer.up_proj.weight[5::32] *= 3000
        layer.down_proj.weight[:, 5::32] = 0
    return model


def levels(path: Path) -> dict[str, int]:
    """The accuracy level of each product, by the name of its layer."""
    found = {}
    for node in onnx.load(path, load_external_data=False).graph.node:
        if node.op_type == "MatMulNBits":
            found[layer_name(node.input[1])] = next(each.i for each in node.attribute if each.name == "accuracy_level")
    return found


def test_a_product_with_massive_inputs_computes_in_float32_in_every_graph(tmp_path: Path) -> None:
    plain, massive = (tiny_model("llama", hidden_size=128, intermediate_size=128) for _ in range(2))
    with_massive_inputs(massive, token=7)
    stages = list[str]()
    options: Any = {"precision": "int4", "eos_ids": (1,), "int8_cache": True, "budget": Budget(calibrates=False)}
    ordinary = export(plain, tmp_path / "plain", **options)
    made = export(massive, tmp_path / "massive", report=stages.append, **options)
    assert "unrounded_inputs" not in ordinary.manifest.quantization
    assert set(levels(ordinary.folder / GRAPH).values()) == {4}
    assert made.manifest.quantization["unrounded_inputs"] == [MASSIVE]
    graphs = [path for path in made.folder.rglob("*.onnx") if levels(path)]
    assert len(graphs) > 2, "those of other runtimes too"
    for path in graphs:
        assert {name for name, level in levels(path).items() if level == 1} == {MASSIVE}
    assert any(f"{MASSIVE} computes in float32" in stage for stage in stages)
    assert max(each["logits_error"] for each in made.manifest.certificate["same_weights"]) < 1e-4


def test_an_export_in_float32_has_nothing_to_settle(tmp_path: Path) -> None:
    model = with_massive_inputs(tiny_model("llama", hidden_size=128, intermediate_size=128), token=7)
    exact = Quantization(4, accuracy_level=1, method="rtn")
    made = export(model, tmp_path / "out", precision="int4", quantization=exact, eos_ids=(1,))
    assert "unrounded_inputs" not in made.manifest.quantization
    assert set(levels(made.folder / GRAPH).values()) == {1}


def test_attempts_examine_each_product_once_and_remember_which_are_costly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = with_massive_inputs(tiny_model("llama", hidden_size=128, intermediate_size=128), token=7), list[list[str]]()

    def noted(graph: ir.Graph, known: Container[str]) -> list[str]:
        seen.append(compare_with_unrounded(graph, known))
        return seen[-1]

    unrounded, measure = list[tuple[str, ...]](), activations.InputRounding.measure

    def told(self: activations.InputRounding, graph: Path, report: Callable[[str], None]) -> tuple[Measures, tuple[str, ...]]:
        found = measure(self, graph, report)
        unrounded.append(found[1])
        return found

    monkeypatch.setattr(activations, "compare_with_unrounded", noted)
    monkeypatch.setattr(activations.InputRounding, "measure", told)
    stages, budget = list[str](), Budget(max_kl=1e-7, calibrates=False)  # which no attempt meets
    export(model, tmp_path / "out", precision="int4", eos_ids=(1,), budget=budget, report=stages.append)
    assert sum(stage.startswith("write ") for stage in stages) > 2, "attempts"
    examined = [name for names in seen for name in names]
    assert len(examined) == len(set(examined)) > 0
    assert unrounded[:2] == [(MASSIVE,), (MASSIVE,)], "before a later attempt gives it 8 bits"


def test_an_error_counts_by_the_usual_size_of_outputs() -> None:
    outputs = np.array([90.0, 1.0, 1.1, 0.9], np.float32)
    assert not is_costly(np.array([0.3, 0.01, 0.01, 0.01], np.float32), outputs)
    assert is_costly(np.array([0.01, 0.01, 0.8, 0.01], np.float32), outputs)
    assert not is_costly(np.array([], np.float32), np.array([], np.float32)), "experts that no token reached"
