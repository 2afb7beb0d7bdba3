"""Linear layers in one form."""

import onnx_ir as ir
import pytest

from onnx_textgen_export.passes.canonical_linears import canonicalize_linears
from onnx_textgen_export.passes.reshapes import simplify_reshapes
from support.small_graphs import READS, Small, check_pass, run, tokens


def gemm(**attributes: float) -> ir.Model:
    """[batch, new, 8] -> Reshape -> Gemm -> Reshape -> [batch, new, 6]."""
    small = Small()
    x = small.input("x", ["batch", "new", 8])
    weight = small.weight("w", *((6, 8) if attributes.get("transB") else (8, 6)))
    product = small.op("Gemm", small.reshape(x, -1, 8), weight, small.weight("b", 6), **attributes)
    sizes = small.op("Concat", small.op("Shape", x, start=0, end=2), small.constant("six", [6], int), axis=0)
    out = small.op("Reshape", product, sizes)
    out.shape = ir.Shape(["batch", "new", 6])
    return small.finish(small.op("Neg", out))


@pytest.mark.parametrize("turned", [0, 1])
def test_a_gemm_between_reshapes_becomes_matmul_and_add(turned: int) -> None:
    left = check_pass(gemm(transB=turned), canonicalize_linears, {"x": tokens(8)})
    assert left == ["MatMul", "Add", "Neg"]


@pytest.mark.parametrize("scaling", [{"alpha": 0.5}, {"beta": 2.0}])
def test_a_gemm_that_scales_stays(scaling: dict[str, float]) -> None:
    assert "Gemm" in check_pass(gemm(**scaling), canonicalize_linears, {"x": tokens(8)})


def test_a_gemm_whose_flat_output_is_used_elsewhere_stays() -> None:
    small = Small()
    product = small.op("Gemm", small.reshape(small.input("x", ["batch", "new", 8]), -1, 8), small.weight("w", 8, 6))
    model = small.finish(small.reshape(product, -1, 3))
    assert "Gemm" in check_pass(model, canonicalize_linears, {"x": tokens(8)})


def test_a_transposed_weight_is_turned_when_it_is_written_and_not_before() -> None:
    small = Small()
    x, weight = small.input("x", ["batch", "new", 8]), small.weight("w", 6, 8)
    model = small.finish(small.op("MatMul", x, small.op("Transpose", weight, perm=[1, 0])))
    assert check_pass(model, canonicalize_linears, {"x": tokens(8)}) == ["MatMul"]
    reads = READS["w"]
    run(model, {"x": tokens(8)})
    assert READS["w"] == reads + 1


def test_a_weight_that_the_embedding_shares_stays_so_that_it_is_stored_once() -> None:
    small = Small()
    ids, weight = small.input("ids", ["batch", "new"], ir.DataType.INT64), small.weight("w", 6, 8)
    embedded = small.op("Gather", weight, ids)
    model = small.finish(small.op("MatMul", embedded, small.op("Transpose", weight, perm=[1, 0])))
    left = check_pass(model, canonicalize_linears, {"ids": tokens(1)[:, :, 0].astype("int64") % 6})
    assert left.count("Transpose") == 1
    assert [name for name in model.graph.initializers if name.startswith("w")] == ["w"]


def test_together_with_reshapes_nothing_is_left_of_the_flattening() -> None:
    def both(model) -> None:
        simplify_reshapes(model)
        canonicalize_linears(model)

    assert check_pass(gemm(), both, {"x": tokens(8)}) == ["MatMul", "Add", "Neg"]
