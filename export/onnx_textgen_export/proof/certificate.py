"""Proof that an export computes what PyTorch computes, and the certificate that records it.

The package is closed before PyTorch computes the reference logits, so both never occupy memory at once. The certificate names the
longest text that was compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from onnx_textgen.package.manifest import GoldenRun, Precision

from ..errors import ExportError, as_export_error
from ..reports import Report
from ..sources.source import Source
from ..weights.streamed import Weights
from .adapters import ProvenAdapter, computing_with
from .measures import TOLERANCES, Quality, Scenario, Tolerance
from .reference import Reference, judge_greedy, judge_scenario
from .scenarios import LAST_STEPS, counted, long_length, run_package

SHORTEST_CONTEXT = 32


def prove(
    reference: Reference,
    weights: Weights,
    graph: Path,
    ids: list[int],
    *,
    tolerance: Tolerance,
    remedy: str,
    adapter: ProvenAdapter | None = None,
    report: Report = lambda step: None,
) -> tuple[list[Scenario], tuple[GoldenRun, ...]]:
    """Measure every scenario and the greedy runs; raises `ExportError` where the package disagrees with PyTorch.

    reference: of the same weights, which remembers what it has computed; ids: `long_length(source)` real tokens; remedy: what the
    error message tells the user to do; adapter: one of the package, with which both sides compute; report: is told the steps.
    """
    source, measured = reference.source, list[Scenario]()
    with as_export_error():
        fed, golden = run_package(source, graph, ids, adapter, report=report)
    with weights.present(), computing_with(adapter, source.module):
        reference.read(fed, golden)
        for each in counted(fed, len(fed), "PyTorch's text", report):
            scenario = judge_scenario(reference, each)
            measured.append(scenario)
            if not tolerance.accepts(scenario):
                raise ExportError(f"the export disagrees with PyTorch ({scenario.in_words()}), so nothing was written; {remedy}")
        for run in golden:
            judge_greedy(reference, run, tolerance, remedy)
    return measured, golden


def make_certificate(
    source: Source,
    measured: list[Scenario],
    exact: list[Scenario],
    precision: Precision,
    *,
    size_bytes: int,
    quality: Mapping[str, Quality] | None = None,
    arithmetic: Precision = "fp32",
) -> dict[str, Any]:
    """The certificate for the manifest; `summary` describes the long text, the only scenario of realistic length.

    For a quantised package, `exact` is what `same_weights` measured of a graph that computes in `arithmetic`, and `quality` what
    rounding does to real texts; then the summary describes `quality`, with the divergence on the kind of text where it is largest.
    """
    longest, text = long_length(source), measured[-1]
    summary = {name: getattr(text, name) for name in ("tokens", "top1_agreement", "kl_divergence", "perplexity_change")}
    if quality is not None:
        everything = quality["all"]
        summary |= {name: getattr(everything, name) for name in ("tokens", "top1_agreement", "perplexity_change")}
        summary["kl_divergence"] = max(each.kl_mean for each in quality.values())
    return {
        "reference": f"PyTorch {torch.__version__}, float32, no cache",
        "summary": {"size_bytes": size_bytes} | summary,
        "longest_text": longest,
        "untested": [
            border.in_words() for border in source.borders if longest - LAST_STEPS <= border.length < source.geometry.context_length
        ],
        "largest_logits_error": max(scenario.logits_error for scenario in measured),
        "tolerance": dataclasses.asdict(TOLERANCES[arithmetic if exact else precision]),
        "scenarios": [dataclasses.asdict(scenario) for scenario in measured],
        **({"same_weights": [dataclasses.asdict(scenario) for scenario in exact]} if exact else {}),
        **({"rounding": {kind: dataclasses.asdict(each) for kind, each in quality.items()}} if quality is not None else {}),
    }
