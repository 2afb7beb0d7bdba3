"""Residual sums inside norms."""

import onnx_ir as ir
import pytest

from onnx_textgen_export.passes.fusions.norms import fuse_skip_norms
from support.small_graphs import Small, check_pass, tokens

FEEDS = {"x": tokens(8), "y": tokens(8)[::-1].copy()}
NORMS = {"RMSNormalization": "SkipSimplifiedLayerNormalization", "LayerNormalization": "SkipLayerNormalization"}


def norm(small: Small, op_type: str, value: ir.Value, name: str = "norm", **attributes: float) -> ir.Value:
    constants = [small.constant(f"{name}.scale", [1, 2, 3, 4, 5, 6, 7, 8])]
    if op_type == "LayerNormalization":
        constants.append(small.constant(f"{name}.bias", [0.5] * 8))
    return small.op(op_type, value, *constants, **{"axis": -1, "epsilon": 1e-3} | attributes)


def start() -> tuple[Small, ir.Value, ir.Value]:
    small = Small()
    return small, small.input("x", ["batch", "new", 8]), small.input("y", ["batch", "new", 8])


@pytest.mark.parametrize("op_type", NORMS)
def test_a_sum_and_its_norm_become_one_and_the_sum_goes_on(op_type: str) -> None:
    small, x, y = start()
    total = small.op("Add", x, y)
    model = small.finish(small.op("Add", total, norm(small, op_type, total)))
    assert check_pass(model, fuse_skip_norms, FEEDS) == [NORMS[op_type], "Add"]


@pytest.mark.parametrize("op_type", NORMS)
def test_a_bias_goes_along(op_type: str) -> None:
    small, x, y = start()
    total = small.op("Add", x, small.op("Add", small.constant("b", [3.0] * 8), y))
    model = small.finish(small.op("Neg", norm(small, op_type, total)), small.op("Neg", total))
    assert check_pass(model, fuse_skip_norms, FEEDS) == [NORMS[op_type], "Neg", "Neg"]


def test_of_two_norms_on_one_sum_the_first_is_fused() -> None:
    small, x, y = start()
    total = small.op("Add", x, y)
    first, second = norm(small, "LayerNormalization", total), norm(small, "LayerNormalization", total, "second")
    model = small.finish(small.op("Mul", first, second))
    assert check_pass(model, fuse_skip_norms, FEEDS) == ["SkipLayerNormalization", "LayerNormalization", "Mul"]


def test_a_norm_that_the_graph_returns_keeps_its_name() -> None:
    small, x, y = start()
    out = norm(small, "RMSNormalization", small.op("Add", x, y))
    out.name = "hidden"
    model = small.finish(out)
    assert check_pass(model, fuse_skip_norms, FEEDS) == ["SkipSimplifiedLayerNormalization"]
    assert model.graph.outputs[0].name == "hidden"


def test_a_sum_with_a_broadcast_stays() -> None:
    small, x, _ = start()
    total = small.op("Add", x, small.input("one", ["batch", 1, 8]))
    model = small.finish(norm(small, "RMSNormalization", total))
    assert check_pass(model, fuse_skip_norms, FEEDS | {"one": tokens(8, new=1)}) == ["Add", "RMSNormalization"]


def test_a_norm_over_other_axes_stays() -> None:
    small, x, y = start()
    scale = small.constant("scale", 2.0)
    model = small.finish(small.op("RMSNormalization", small.op("Add", x, y), scale, axis=1))
    assert check_pass(model, fuse_skip_norms, FEEDS) == ["Add", "RMSNormalization"]


def test_a_sum_that_the_graph_returns_stays() -> None:
    small, x, y = start()
    total = small.op("Add", x, y)
    model = small.finish(total, norm(small, "RMSNormalization", total))
    assert check_pass(model, fuse_skip_norms, FEEDS) == ["Add", "RMSNormalization"]
