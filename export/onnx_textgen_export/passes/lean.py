"""All passes that make a traced graph small, in their order."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from onnx_textgen.package.manifest import Target

from .attention.attention_inputs import attention_inputs
from .gelus import gelus
from .last_positions import last_positions
from .late_transposes import late_transposes
from .pack_projections import pack_projections
from .plain_linears import plain_linears
from .reshapes import reshapes
from .skip_norms import skip_norms


def lean(model: ir.Model, *, context_length: int, target: Target = "ort") -> None:
    """Make `model` lean in place; its logits stay, and weights are not loaded.

    `standard` gets only what needs no operator outside the ONNX domain.
    """
    tidy(model)
    reshapes(model)
    plain_linears(model)
    reshapes(model)
    late_transposes(model)
    gelus(model)
    last_positions(model)
    if target == "ort":
        attention_inputs(model, context_length=context_length)
        reshapes(model)
    common_passes.RemoveUnusedNodesPass()(model)
    pack_projections(model)
    if target == "ort":
        skip_norms(model)
    tidy(model)


def tidy(model: ir.Model) -> None:
    """Drop what does nothing or is there twice; outputs keep their names, also where two return the same value."""
    names = [value.name for value in model.graph.outputs]
    passes = ir.passes.Sequential(
        common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common_passes.IdentityEliminationPass(),
        common_passes.CommonSubexpressionEliminationPass(),
        common_passes.RemoveUnusedNodesPass(),
        common_passes.OutputFixPass(),
    )
    passes(model)
    for value, name in zip(model.graph.outputs, names, strict=True):
        value.name = name
