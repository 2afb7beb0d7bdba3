"""Several products of one input as one."""

import onnx_ir as ir
import pytest

from onnx_textgen_export.passes.fusions import packed_projections as packing
from onnx_textgen_export.passes.fusions.packed_projections import pack_projections
from support.small_graphs import READS, Small, check_pass, run, tokens

FEEDS = {"x": tokens(8)}


def linear(small: Small, x: ir.Value, name: str, outputs: int, *, bias: bool = False) -> ir.Value:
    product = small.op("MatMul", x, small.weight(f"{name}.weight", 8, outputs))
    return small.op("Add", product, small.weight(f"{name}.bias", outputs)) if bias else product


@pytest.mark.parametrize("bias", [False, True])
def test_gate_and_up_projection_become_one_product_whose_weights_are_read_when_written(bias: bool) -> None:
    small = Small()
    x = small.input("x", ["batch", "new", 8])
    gate, up = (linear(small, x, name, 64, bias=bias) for name in ("gate", "up"))
    model = small.finish(small.op("Mul", small.op("Sigmoid", gate), up))
    assert check_pass(model, pack_projections, FEEDS) == ["MatMul", *["Add"] * bias, "Split", "Sigmoid", "Mul"]
    before = READS["gate.weight"]
    run(model, FEEDS)
    assert READS["gate.weight"] == before + 1


def test_layers_of_different_inputs_stay() -> None:
    small = Small()
    x = small.input("x", ["batch", "new", 8])
    model = small.finish(small.op("Mul", linear(small, x, "a", 64), linear(small, small.op("Neg", x), "b", 64)))
    assert check_pass(model, pack_projections, FEEDS).count("MatMul") == 2


def test_layers_of_different_sizes_that_do_not_lead_to_attention_stay() -> None:
    small = Small()
    x = small.input("x", ["batch", "new", 8])
    gate = small.op("ReduceSum", linear(small, x, "gate", 64), small.constant("axis", [-1], int), keepdims=1)
    model = small.finish(small.op("Mul", gate, linear(small, x, "up", 128)))
    assert check_pass(model, pack_projections, FEEDS).count("MatMul") == 2


def test_a_router_stays_apart_even_if_it_is_as_wide() -> None:
    small = Small()
    x = small.input("x", ["batch", "new", 8])
    best, _ = small.op("TopK", linear(small, x, "router", 64), small.constant("k", [1], int), outputs=2)
    model = small.finish(small.op("Mul", best, linear(small, x, "up", 64)))
    assert check_pass(model, pack_projections, FEEDS).count("MatMul") == 2


def test_a_layer_whose_output_the_graph_returns_stays() -> None:
    small = Small()
    x = small.input("x", ["batch", "new", 8])
    model = small.finish(linear(small, x, "a", 64), linear(small, x, "b", 64))
    assert check_pass(model, pack_projections, FEEDS) == ["MatMul", "MatMul"]


def test_layers_with_and_without_bias_stay_apart() -> None:
    small = Small()
    x = small.input("x", ["batch", "new", 8])
    model = small.finish(small.op("Mul", linear(small, x, "a", 64), linear(small, x, "b", 64, bias=True)))
    assert check_pass(model, pack_projections, FEEDS).count("MatMul") == 2


def test_the_smallest_projection_is_wider_than_any_gate_of_one_number() -> None:
    assert packing.SMALLEST > 1
