"""Proof of the graph that keeps keys and values at 8 bits, and which packages can have one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx_textgen.package.manifest import Precision, Target

from ..errors import ExportError
from ..passes.quantization.options import Quantization
from ..weights.streamed import Weights
from . import measures
from .certificate import prove
from .measures import Scenario, Tolerance
from .reference import Reference

LEAVE_OUT = "leave out --int8-cache"
TOO_COARSE = f"that is with keys and values at 8 bits, so {LEAVE_OUT}"
ROUNDED = Tolerance(logits_error=0.5, top1_agreement=0.9, kl_divergence=0.02)
TOLERANCES: dict[Precision, Tolerance] = {"fp32": ROUNDED, "int8": ROUNDED, "int4": measures.TOLERANCES["int4"]}
"""Limits of the graph by the precision of the weights; the certificate holds what rounding costs."""


def prove_int8_cache(
    reference: Reference, weights: Weights, graph: Path, ids: list[int], *, precision: Precision, own: Scenario
) -> dict[str, Any]:
    """Measures of the graph on the proof's long text; raises `ExportError` if it differs too much from PyTorch.

    own: the same measures of the package's main graph, which has the same rounded weights.
    """
    known = TOLERANCES[precision]
    tolerance = Tolerance(
        logits_error=known.logits_error + 2 * own.logits_error,
        top1_agreement=known.top1_agreement * own.top1_agreement,
        kl_divergence=known.kl_divergence + 2 * own.kl_divergence,
    )
    measured, _ = prove(reference, weights, graph, ids, tolerance=tolerance, remedy=TOO_COARSE)
    text = measured[-1]
    return {name: getattr(text, name) for name in ("tokens", "top1_agreement", "kl_divergence", "perplexity_change")}


def check_int8_cache(precision: Precision, target: Target, options: Quantization | None) -> None:
    """Raise `ExportError` for targets and precisions that cannot have such a graph, before anything is traced."""
    if target != "ort":
        raise ExportError(f"no 8-bit cache: it is kept by an operator of ONNX Runtime's; {LEAVE_OUT}, or take --target ort")
    if precision not in TOLERANCES or (options is not None and options.activations is not None):
        raise ExportError(f"no 8-bit cache: float16 is meant for GPUs, and this is for the CPU; {LEAVE_OUT}")
