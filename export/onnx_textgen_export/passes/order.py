"""Every pass in its order: one table, which runs and which the documentation prints.

There are three stages. `trace` runs right after the tracer (`tracing/tracer.py`). `optimize` simplifies and fuses the graph, once
per export. `store` converts a copy of it to the wanted precision, once per rounding attempt (`exporting/graphs.py`). Weights are
read only by `mark_lossless`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Literal

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from onnx_textgen.package.manifest import Precision, Target

from ..sources.stored_form import StoredForm
from .attention.attention_inputs import fuse_attention_inputs
from .canonical_linears import canonicalize_linears
from .experts import lower_experts
from .float16 import to_float16
from .folding import fold
from .fusions.gelu import fuse_gelu
from .fusions.norms import fuse_skip_norms
from .fusions.packed_projections import pack_projections
from .fusions.transposed_matmul import fuse_transposed_matmul
from .linear_layers import record_linear_layers, settle_linear_layers
from .positions import gather_positions
from .quantization.lossless import keeps_numbers, mark_lossless
from .quantization.options import Quantization
from .quantization.plan import Plan
from .quantization.rounding import Roundings
from .quantization.stored_matrices import quantize
from .recurrences import lower_recurrences
from .reshapes import simplify_reshapes
from .softplus import spell_softplus
from .transposes import sink_transposes

Stage = Literal["trace", "optimize", "store"]


@dataclasses.dataclass(slots=True)
class Settings:
    """Settings of one run of the passes, and their findings."""

    target: Target = "ort"
    context_length: int = 0
    precision: Precision = "fp32"
    quantization: Quantization | None = None
    stored: Mapping[str, StoredForm] = dataclasses.field(default_factory=dict)
    """How the source held parameters that it had quantised."""
    plan: Plan | None = None
    """What calibration chose for each matrix."""
    roundings: Roundings | None = None
    """Set by `quantize`: what it rounded."""
    has_cache: bool = True
    """Whether the graph continues texts; else it reads whole ones."""


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """When a pass runs."""

    words: str
    holds: Callable[[Settings], bool]


def is_float16(settings: Settings) -> bool:
    """Return whether activations are stored and computed in float16."""
    return settings.precision == "fp16" or (settings.quantization is not None and settings.quantization.activations is not None)


ALWAYS = Condition("always", lambda settings: True)
ORT = Condition("target `ort`", lambda settings: settings.target == "ort")
QUANTIZED = Condition("int8, int4", lambda settings: settings.quantization is not None)
FLOAT16 = Condition("float16", is_float16)
LOSSLESS = Condition(
    "int8, int4 with float32 activations, target `ort`",
    lambda settings: settings.quantization is not None and keeps_numbers(settings.target, settings.quantization),
)
ORT_WITH_CACHE = Condition("target `ort`, decoders", lambda settings: settings.target == "ort" and settings.has_cache)
FLOAT32_ORT = Condition("float32, target `ort`", lambda settings: settings.target == "ort" and not is_float16(settings))


def kept_forms(settings: Settings) -> Mapping[str, StoredForm]:
    """How the source held parameters that may keep their numbers."""
    return settings.stored if LOSSLESS.holds(settings) else {}


@dataclasses.dataclass(frozen=True, slots=True)
class Pass:
    """One change of the graph, in place."""

    stage: Stage
    apply: Callable[[ir.Model, Settings], None]
    purpose: str
    """One line for the table of the documentation."""
    when: Condition = ALWAYS

    @property
    def name(self) -> str:
        """The function's name."""
        return self.apply.__name__


def tidy(model: ir.Model) -> None:
    """Drop identities, duplicates and unused nodes; outputs keep their names, also where two return the same value."""
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


def remove_unused(model: ir.Model) -> None:
    """Drop nodes and constants that nothing reads."""
    common_passes.RemoveUnusedNodesPass()(model)


def plain(change: Callable[[ir.Model], None]) -> Callable[[ir.Model, Settings], None]:
    """A pass that needs no settings, in the form of one that takes them."""

    @functools.wraps(change)
    def apply(model: ir.Model, settings: Settings) -> None:
        change(model)

    return apply


@functools.wraps(lower_recurrences)
def recurrences_pass(model: ir.Model, settings: Settings) -> None:
    """`lower_recurrences` to the operators of the target."""
    lower_recurrences(model, settings.target)


@functools.wraps(fuse_attention_inputs)
def attention_pass(model: ir.Model, settings: Settings) -> None:
    """`fuse_attention_inputs` with the context length that its tables of positions cover."""
    fuse_attention_inputs(model, context_length=settings.context_length, stored=kept_forms(settings))


@functools.wraps(pack_projections)
def packing_pass(model: ir.Model, settings: Settings) -> None:
    """`pack_projections` of layers that are stored alike, where they may keep their numbers."""
    pack_projections(model, kept_forms(settings))


@functools.wraps(mark_lossless)
def lossless_pass(model: ir.Model, settings: Settings) -> None:
    """`mark_lossless` of the model's graph, by how the source stored its parameters."""
    mark_lossless(model.graph, settings.stored)


@functools.wraps(record_linear_layers)
def record_pass(model: ir.Model, settings: Settings) -> None:
    """`record_linear_layers` with the smoothing that calibration chose."""
    record_linear_layers(model, settings.plan)


@functools.wraps(quantize)
def quantize_pass(model: ir.Model, settings: Settings) -> None:
    """`quantize`, whose roundings go into the settings."""
    assert settings.quantization is not None, "the pass runs on its condition"
    settings.roundings = quantize(model, settings.quantization, settings.target, settings.plan)


PASSES: tuple[Pass, ...] = (
    Pass("trace", plain(fold), "folds constants, drops operators that change nothing, names norms and rotary embeddings"),
    Pass("trace", recurrences_pass, "turns traced recurrences into ONNX Runtime's LinearAttention, or a Scan over the tokens"),
    Pass("trace", plain(lower_experts), "turns traced experts into ONNX Runtime's MoE, or a Split with one MatMul per expert"),
    Pass("optimize", plain(tidy), "drops identities, duplicates and unused nodes"),
    Pass("optimize", plain(simplify_reshapes), "merges chains of Reshapes and writes their target shapes as constants"),
    Pass("optimize", plain(canonicalize_linears), "writes every linear layer as `MatMul(x, W)` with W [in, out], and an Add"),
    Pass("optimize", plain(simplify_reshapes), "again: the step before leaves Reshapes around each former Gemm"),
    Pass("optimize", plain(sink_transposes), "moves a Transpose after the norm of the last axis that follows it"),
    Pass("optimize", plain(fuse_gelu), "turns a GELU that is spelt out in eight operators into one `Gelu`"),
    Pass("optimize", plain(gather_positions), "takes the positions whose logits are wanted with one Gather"),
    Pass("optimize", attention_pass, "moves projections and rotary embedding into GroupQueryAttention", ORT),
    Pass("optimize", plain(simplify_reshapes), "again: the step before leaves Reshapes around each attention", ORT),
    Pass("optimize", plain(remove_unused), "drops what the fused operators replaced"),
    Pass("optimize", packing_pass, "joins linear layers of one input into one product and a Split"),
    Pass("optimize", plain(fuse_skip_norms), "joins each residual sum with the norm that reads it", ORT_WITH_CACHE),
    Pass("optimize", plain(tidy), "drops identities, duplicates and unused nodes"),
    Pass("optimize", lossless_pass, "marks matrices that 2, 4 or 8 bits store without loss", LOSSLESS),
    Pass("store", record_pass, "records which parameters each product computes, for LoRA adapters"),
    Pass("store", quantize_pass, "stores matrices as codes and scales", QUANTIZED),
    Pass("store", plain(to_float16), "turns weights, activations, cache and logits to float16", FLOAT16),
    Pass("store", plain(spell_softplus), "writes Softplus in operators whose last bits do not depend on the batch", ORT),
    Pass("store", plain(fuse_transposed_matmul), "multiplies with a matrix stored as [out, in] without a Transpose", FLOAT32_ORT),
    Pass("store", plain(remove_unused), "drops what the steps before replaced"),
    Pass("store", plain(settle_linear_layers), "leaves in that record what the finished graph has"),
)
"""All passes, in the order in which they run."""


def run_passes(stage: Stage, model: ir.Model, settings: Settings) -> None:
    """Run the passes of one stage that apply, in place and in their order; the model's logits stay the same."""
    for each in PASSES:
        if each.stage == stage and each.when.holds(settings):
            each.apply(model, settings)


def pass_table() -> str:
    """The passes as a Markdown table, as docs/structure.md shows it."""
    rows = [f"| {each.stage} | `{each.name}` | {each.purpose} | {each.when.words} |" for each in PASSES]
    return "\n".join(["| stage | pass | what it does | when |", "|---|---|---|---|", *rows])
