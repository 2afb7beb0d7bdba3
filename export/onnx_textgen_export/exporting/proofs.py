"""Every proof that a finished folder has to pass, and what they measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from onnx_textgen.package.manifest import ATTENTION_GRAPH, GRAPH, INT8_CACHE_GRAPH

from ..passes.quantization.rounding import Roundings
from ..proof.attention_maps import prove_attention_maps
from ..proof.encoder_states import prove_encoder_states
from ..proof.hidden_states import prove_hidden_states
from ..proof.int8_cache import prove_int8_cache
from ..proof.measures import REMEDIES
from ..proof.other_graphs import graphs_for_others, prove_other_graphs
from ..proof.reference import Reference
from ..proof.same_weights import Compared, prove_with_rounding
from ..reports import Report, begin
from ..sources.source import Source
from ..weights.streamed import Weights
from .options import ExportOptions


@dataclasses.dataclass(frozen=True, slots=True)
class Proven:
    """Measurements of the proofs."""

    compared: Compared
    more: dict[str, Any]
    """For the certificate: hidden states, attention maps, the cache at 8 bits."""


def prove_package(
    source: Source,
    weights: Weights,
    folder: Path,
    ids: list[int],
    roundings: Roundings | None,
    *,
    options: ExportOptions,
    report: Report,
) -> Proven:
    """Compare the graphs of a folder with PyTorch on token ids; raises `ExportError` where they differ too much.

    roundings: what was rounded of the weights, if anything.
    """
    precision, graph, more = options.chosen_precision, folder / GRAPH, dict[str, Any]()
    reference = Reference(source)
    told = begin("compare with PyTorch", report)
    compared = prove_with_rounding(
        reference, weights, graph, ids, precision=precision, remedy=REMEDIES[precision], roundings=roundings, report=told
    )
    if source.encoder is not None:
        more["encoder_states_error"] = prove_encoder_states(source, weights, folder, ids, precision=precision, roundings=roundings)
    if options.hidden_states:
        more["hidden_states_error"] = prove_hidden_states(source, weights, graph, ids, precision=precision, roundings=roundings)
    if options.attention_maps:
        maps = folder / ATTENTION_GRAPH
        more["attention_maps_error"] = prove_attention_maps(source, weights, maps, ids, precision=precision, roundings=roundings)
    if options.int8_cache:
        report("compare, cache at 8 bits")
        int8 = folder / INT8_CACHE_GRAPH
        more["int8_cache"] = prove_int8_cache(reference, weights, int8, ids, precision=precision, own=compared.measured[-1])
    if graphs := graphs_for_others(folder):
        report("compare, graphs for other runtimes")
        prove_other_graphs(source, graphs, graph, ids, arithmetic=roundings.arithmetic if roundings is not None else precision)
    return Proven(compared, more)
