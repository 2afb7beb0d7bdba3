"""Fold constants, drop operators that change nothing, and replace norms and rotary embeddings by single operators.

All rules are onnx-ir's and onnxscript's. Only some are used: the full set, made for convolutions too, contains one whose search
grows with the square of the graph (30 layers: 15 s instead of 3).
"""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from ..errors import named_versions
from .graph.linear import SMALL
from .graph.provenance import parameters_of

RULES = (
    "add_0_rule",
    "sub_0_rule",
    "mul_by_1_rule",
    "div_by_1_rule",
    "dropout_zero_rule",
    "dropout_inference_rule",
    "one_reshape_matmul_reshape_rule",
    "two_reshapes_matmul_reshape_rule",
    "collapse_slice_rule",
    "collapse_slice2_rule",
    "materialize_reshape_shape_rule",
    "cast_cast_rule",
    "no_op_cast_rule",
    "no_op_expand_rule",
    "reshape_reshape_rule",
    "no_op_transpose_rule",
    "transpose_transpose_rule",
    "unsqueeze_unsqueeze_rule",
    "squeeze_reshape_1d_rule",
)
"""Names in `onnxscript.rewriter.rules.common`, which is private: versions may rename them."""
ROUNDS = 2
"""A round finds patterns that the one before uncovered."""


def unless_matrix(node: ir.Node) -> bool | None:
    """Return False for a reader of a matrix, such as its Transpose, which is not folded; else None: the library decides."""
    constants = [value.const_value for value in node.inputs if value is not None and value.const_value is not None]
    return False if any(one.size > SMALL or (len(one.shape) == 2 and parameters_of(one)) for one in constants) else None


def fold(model: ir.Model) -> None:
    """Fold `model` in place; large weights are not read. Raises `ExportError` for an onnxscript without these rules."""
    with named_versions():
        from onnxscript import optimizer, rewriter  # noqa: PLC0415
        from onnxscript.rewriter import onnx_fusions  # noqa: PLC0415
        from onnxscript.rewriter.rules import common as rules  # noqa: PLC0415

        chosen = [getattr(rules, name) for name in RULES]
    common_passes.InlinePass()(model)
    for _ in range(ROUNDS):
        optimizer.fold_constants_ir(model, should_fold=unless_matrix)
        rewriter.rewrite(model, chosen)
    tidy = (
        common_passes.RemoveUnusedNodesPass(),
        common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common_passes.LiftSubgraphInitializersToMainGraphPass(),
        common_passes.DeduplicateInitializersPass(),
        common_passes.CommonSubexpressionEliminationPass(),
    )
    ir.passes.Sequential(*tidy)(model)
    onnx_fusions.fuse(model)
    last = (
        common_passes.RemoveUnusedNodesPass(),
        common_passes.CommonSubexpressionEliminationPass(),
        common_passes.OutputFixPass(),
        common_passes.NameFixPass(),
    )
    ir.passes.Sequential(*last)(model)
