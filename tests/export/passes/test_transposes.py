"""Transposes that wait until after a norm."""

import onnx_ir as ir
import pytest

from onnx_textgen_export.passes.transposes import sink_transposes
from support.small_graphs import Small, check_pass, tokens


def heads_then_norm(perm: list[int], op_type: str = "RMSNormalization") -> ir.Model:
    small = Small()
    heads = small.reshape(small.input("x", ["batch", "new", 8]), 0, 0, 2, 4)
    scale = small.constant("scale", [0.5, 1, 2, 3] if perm[-1] == 3 else [0.5, 2, 3])
    return small.finish(small.op(op_type, small.op("Transpose", heads, perm=perm), scale, axis=-1, epsilon=1e-6))


@pytest.mark.parametrize("op_type", ["RMSNormalization", "LayerNormalization"])
def test_a_transpose_of_heads_comes_after_the_norm(op_type: str) -> None:
    left = check_pass(heads_then_norm([0, 2, 1, 3], op_type), sink_transposes, {"x": tokens(8)})
    assert left == ["Reshape", op_type, "Transpose"]


def test_a_transpose_that_moves_the_normalised_axis_stays_before_it() -> None:
    left = check_pass(heads_then_norm([0, 2, 3, 1]), sink_transposes, {"x": tokens(8)})
    assert left == ["Reshape", "Transpose", "RMSNormalization"]
