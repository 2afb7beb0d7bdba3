"""From a decoder to a proven model folder: trace, change the graph, write, compare with PyTorch, and only then keep."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import onnxruntime
import torch
from tokenizers import Tokenizer
from torch import nn

from onnx_textgen.errors import first_line
from onnx_textgen.package.manifest import ATTENTION_GRAPH, GRAPH, INT8_CACHE_GRAPH, Manifest, Precision, Target

from .calibration.attempts import Budget, Traced, limit_of, round_within_budget
from .calibration.estimate import estimate
from .calibration.plan import Plan
from .errors import ExportError, innermost
from .extra_graphs.attention_maps import attentions_of, prove_attention_maps, write_attention_graph
from .extra_graphs.genai import opens_in_genai, write_genai
from .extra_graphs.hidden_states import prove_hidden_states
from .extra_graphs.int8_cache import check_int8_cache, int8_cache_bytes, prove_int8_cache, write_int8_cache_graph
from .package.folder import check_target, new_folder, records, scratch_folder, write_manifest
from .package.forecast import Forecast, check_disk, forecast, stored_parameters
from .package.writer import weights_bytes, write_graph
from .passes.half import to_half
from .passes.lean import lean
from .passes.quantization.options import Quantization, default_for
from .passes.quantization.quantize import quantize
from .passes.quantization.rounding import Roundings
from .passes.quantization.ternary import mark_ternary
from .passes.turned_products import turned_products
from .proof.parity import ANY_ROUNDING, REMEDIES, SHORTEST_CONTEXT, TOLERANCES, Scenario, certificate, prove
from .proof.probe_text import probe_ids
from .proof.same_weights import prove_exactly
from .sources.source import Source
from .tokenization.text_assets import TextAssets
from .tokenization.turns import in_turn
from .tracing.opening import as_source, open_source
from .tracing.trace import trace
from .weights.streamed import OwnWeights, Weights, blocks_of

Report = Callable[[str], None]
MANIFEST_BYTES = 12_000
"""More than a manifest takes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """What an export made."""

    folder: Path
    manifest: Manifest


def versions() -> dict[str, str]:
    """Exporter and libraries; transformers where it was imported, as for every checkpoint."""
    libraries = {"torch": torch, "transformers": sys.modules.get("transformers"), "onnx": onnx, "onnxruntime": onnxruntime}
    return {
        "onnx-textgen": version("onnx-textgen"),
        **{name: str(library.__version__) for name, library in libraries.items() if library},
    }


def check_ids_and_context(source: Source, assets: TextAssets) -> None:
    """Refuse a context too short to prove anything in, and special ids that the model has no logits for."""
    geometry = source.geometry
    if geometry.context_length < SHORTEST_CONTEXT:
        raise ExportError(f"a context of {geometry.context_length} is too short to prove; it takes at least {SHORTEST_CONTEXT}")
    for token_id in (assets.bos_id, assets.pad_id, *assets.eos_ids):
        if token_id is not None and not 0 <= token_id < geometry.vocab_size:
            raise ExportError(
                f"the special id {token_id} is outside the vocabulary of {geometry.vocab_size}; mend the source's config"
            )


def finish_graph(
    model: ir.Model, precision: Precision, target: Target, options: Quantization | None = None, plan: Plan | None = None
) -> Roundings | None:
    """Change a lean graph to what is stored, in place, its weights still unread; returns what is rounded of them, if anything."""
    roundings = quantize(model, options, target, plan) if options is not None else None
    if precision == "fp16" or (options is not None and options.activations is not None):
        to_half(model)
    elif target == "ort":
        turned_products(model)
    common_passes.RemoveUnusedNodesPass()(model)
    return roundings


@in_turn
def export_source(
    source: Source,
    weights: Weights,
    out: str | Path,
    *,
    assets: TextAssets,
    name: str,
    origin: str = "",
    precision: Precision = "fp32",
    target: Target = "ort",
    quantization: Quantization | None = None,
    budget: Budget | None = None,
    genai: bool = True,
    hidden_states: bool = False,
    attention_maps: bool = False,
    int8_cache: bool = False,
    force: bool = False,
    report: Report = lambda stage: None,
) -> Exported:
    """Export `source` to the folder `out`; `report` is told each stage as it begins.

    Raises `ExportError` and leaves nothing behind if the model cannot be traced or its logits differ from PyTorch's.
    """
    check_precision(precision, quantization)
    budget = budget or Budget()
    options = chosen_options(precision, quantization, budget, source.geometry.hidden_size)
    check_ids_and_context(source, assets)
    check_extras(source, precision, target, options, attention_maps=attention_maps, int8_cache=int8_cache)
    target_folder = Path(out)
    check_target(target_folder, force=force)
    ids = probe_ids(source, assets.tokenizer)
    expected = forecast_of(source, weights, precision=precision, options=options, target=target)
    check_disk(target_folder, expected.package_bytes)
    report(f"forecast: {expected.describe()}")
    if options is not None and options.bits == 4:
        report("estimate")
        report(estimate_line(source, weights, assets, options, budget))
    model = lean_graph(source, weights, target, hidden_states=hidden_states, report=report)
    with new_folder(target_folder, force=force) as folder, scratch_folder(target_folder) as work:
        assets.write(folder)
        beside = functools.partial(write_beside, source, folder, assets, target, genai=genai, attention_maps=attention_maps)
        write = functools.partial(
            write_attempt,
            model=model,
            folder=folder,
            precision=precision,
            target=target,
            beside=beside,
            int8_cache=source if int8_cache else None,
        )
        made, rounded = Traced(model, source, weights, assets, target, folder / GRAPH, work), None
        if options is not None:
            if target == "ort" and options.activations is None:  # No released kernel of a GPU takes 2 bits.
                mark_ternary(model.graph)
            rounded = round_within_budget(made, options=options, budget=budget, write=write, report=report)
        else:
            report("write")
            write(None, None)
        roundings = rounded.roundings if rounded is not None else None
        del model, made, write
        if int8_cache:
            report("scale the cache")
            write_int8_cache_graph(source, folder, assets.tokenizer)
        exact = list[Scenario]()
        if roundings is not None:
            report("compare, weights rounded")
            exact = prove_exactly(source, weights, folder / GRAPH, ids, roundings)
        report("compare with PyTorch")
        tolerance = ANY_ROUNDING if exact else TOLERANCES[precision]  # where the graph is right, the rounding has been measured
        measured, golden = prove(source, weights, folder / GRAPH, ids, tolerance=tolerance, remedy=REMEDIES[precision])
        more = prove_extras(
            source,
            weights,
            folder,
            ids,
            precision=precision,
            roundings=roundings,
            own=measured[-1],
            hidden_states=hidden_states,
            attention_maps=attention_maps,
            int8_cache=int8_cache,
            report=report,
        )
        files = records(folder)
        manifest = Manifest(
            name=name,
            target=target,
            precision=precision,
            geometry=source.geometry,
            bos_id=assets.bos_id,
            eos_ids=assets.eos_ids,
            pad_id=assets.pad_id,
            files=files,
            quantization=rounded.as_record() if rounded is not None else {},
            generation=assets.generation,
            source=origin,
            versions=versions(),
            certificate=certificate(
                source,
                measured,
                exact,
                precision,
                size_bytes=sum(record.size for record in files.values()),
                quality=rounded.quality if rounded is not None else None,
                arithmetic=roundings.arithmetic if roundings is not None else "fp32",
            )
            | more,
            golden=golden,
        )
        write_manifest(folder, manifest)
    return Exported(target_folder, manifest)


def prove_extras(
    source: Source,
    weights: Weights,
    folder: Path,
    ids: list[int],
    *,
    precision: Precision,
    roundings: Roundings | None,
    own: Scenario,
    hidden_states: bool,
    attention_maps: bool,
    int8_cache: bool,
    report: Report,
) -> dict[str, Any]:
    """For the certificate: what the proofs of all that was asked for beside logits measured; `own`: a long text's logits."""
    more: dict[str, Any] = {}
    if hidden_states:
        more["hidden_states_error"] = prove_hidden_states(
            source, weights, folder / GRAPH, ids, precision=precision, roundings=roundings
        )
    if attention_maps:
        more["attention_maps_error"] = prove_attention_maps(
            source, weights, folder / ATTENTION_GRAPH, ids, precision=precision, roundings=roundings
        )
    if int8_cache:
        report("compare, cache at 8 bits")
        more["int8_cache"] = prove_int8_cache(source, weights, folder / INT8_CACHE_GRAPH, ids, precision=precision, own=own)
    return more


def estimate_line(source: Source, weights: Weights, assets: TextAssets, options: Quantization, budget: Budget) -> str:
    """What 4 bits are likely to cost, in a line; a source whose code takes no batch, say, gets none."""
    try:
        found = estimate(source, weights, assets, options, budget)
    except (RuntimeError, ValueError, TypeError, LookupError, NotImplementedError) as error:
        return f"no estimate: {first_line(innermost(error))}"
    return found.describe(budget, limit_of(options, budget), is_fixed=bool(options.head_bits or options.sensitive_bits))


def check_extras(
    source: Source,
    precision: Precision,
    target: Target,
    options: Quantization | None,
    *,
    attention_maps: bool,
    int8_cache: bool,
) -> None:
    """Refuse graphs that there can be none of, before anything is traced."""
    if attention_maps:
        attentions_of(source)
    if int8_cache:
        check_int8_cache(precision, target, options)


def write_beside(source: Source, folder: Path, assets: TextAssets, target: Target, *, genai: bool, attention_maps: bool) -> None:
    """Write what follows from the package's graph alone: the forms of it for genai and for attention maps, where asked for."""
    if genai and opens_in_genai(source, assets):
        write_genai(folder, source, assets, target)
    if attention_maps:
        write_attention_graph(folder, source.geometry.heads)


def lean_graph(source: Source, weights: Weights, target: Target, *, hidden_states: bool, report: Report) -> ir.Model:
    """The source as a small graph in float32."""
    report("trace")
    model = trace(source, target, weights, hidden_states=hidden_states)
    lean(model, context_length=source.geometry.context_length, target=target)
    return model


def write_attempt(
    options: Quantization | None,
    plan: Plan | None,
    *,
    model: ir.Model,
    folder: Path,
    precision: Precision,
    target: Target,
    beside: Callable[[], None] = lambda: None,
    int8_cache: Source | None = None,
) -> tuple[int, Roundings | None]:
    """Write a package's graphs, which leaves `model` as it is; returns the bytes of the package, and what was rounded.

    int8_cache: the source, where a graph with its cache at 8 bits is still to come; that one and the manifest are counted too.
    """
    attempt = model.clone()
    roundings = finish_graph(attempt, precision, target, options, plan)
    check_disk(folder, weights_bytes(attempt))  # exact, with tables that the passes made
    write_graph(attempt, folder)
    beside()
    to_come = MANIFEST_BYTES + (int8_cache_bytes(int8_cache, folder / GRAPH) if int8_cache else 0)
    return sum(entry.stat().st_size for entry in folder.iterdir() if entry.is_file()) + to_come, roundings


def chosen_options(precision: Precision, quantization: Quantization | None, budget: Budget, width: int) -> Quantization | None:
    """The options of a precision: the ones given or its defaults, without calibration where none is wanted."""
    options = quantization or default_for(precision, width)
    if options is None and budget != Budget():
        raise ExportError(f"{precision} is not quantised, so there is no rounding to make better; take --precision int8 or int4")
    if options is not None and options.method == "calibrated" and not budget.calibrates:
        options = dataclasses.replace(options, method="k_quant")
    return options


def check_precision(precision: Precision, quantization: Quantization | None) -> None:
    """Refuse a precision there is none of, and options that do not fit."""
    if precision not in get_args(Precision):
        raise ExportError(f"there is no precision {precision}; take one of {', '.join(get_args(Precision))}")
    if quantization is not None and precision != f"int{quantization.bits}":
        raise ExportError(
            f"{quantization.describe()} is asked for, and the precision {precision}; take --precision int{quantization.bits}"
        )


def forecast_of(
    source: Source, weights: Weights, *, precision: Precision, options: Quantization | None, target: Target
) -> Forecast:
    """What exporting a source will need."""
    parameters = stored_parameters(source.module)
    inside = {id(parameter) for block in blocks_of(source.module).values() for parameter in block.parameters()}
    held = [p for p in source.module.parameters() if isinstance(weights, OwnWeights) or id(p) not in inside]
    return forecast(
        parameters,
        layers=source.geometry.layers,
        precision=precision,
        options=options,
        target=target,
        resident_bytes=sum(4 * parameter.numel() for parameter in held),
    )


@in_turn
def export(
    source: str | Path | nn.Module,
    out: str | Path,
    *,
    precision: Precision = "fp32",
    target: Target = "ort",
    quantization: Quantization | None = None,
    budget: Budget | None = None,
    tokenizer: str | Path | Tokenizer | None = None,
    eos_ids: tuple[int, ...] = (),
    context_length: int | None = None,
    name: str | None = None,
    origin: str | None = None,
    allow_pickle: bool = False,
    genai: bool = True,
    hidden_states: bool = False,
    attention_maps: bool = False,
    int8_cache: bool = False,
    force: bool = False,
    report: Report = lambda stage: None,
) -> Exported:
    """Export a checkpoint, a transformers model or any decoder module to the model folder `out`, with proof.

    source: a Hugging Face checkpoint folder, `owner/name` on the hub, a `TinyTransformer` folder, a transformers model, or an
    `nn.Module` (or `file.py:name` of one) whose forward takes `(input_ids, position_ids, cache)` or `(input_ids,
    past_key_values=...)`. A module brings no text of its own: give it `tokenizer` (a tokenizer.json) and `eos_ids`, or generate
    from token ids. `quantization` says more about int8 and int4 than their defaults, `budget` how much they may lose or how
    large they may be; `context_length` overrides what the source says; `origin` tells where the weights came from, and their
    licence. `allow_pickle` lets weights be read from a pickle, tensors only. `genai` adds what onnxruntime-genai opens the
    folder by, where it can run the decoder; `hidden_states` an output that `Model.embed` needs, `attention_maps` the graph that
    `Model.attentions` needs, `int8_cache` one that keeps keys and values at 8 bits. Several threads export one after the other.

    Raises `ExportError`, with nothing written, if the source cannot be traced or the package does not compute what PyTorch does.
    """
    check_precision(precision, quantization)
    report("load")
    opened = open_source(source, tokenizer=tokenizer, allow_pickle=allow_pickle, report=report)
    assets = dataclasses.replace(opened.assets, eos_ids=eos_ids) if eos_ids else opened.assets
    with as_source(opened, context_length) as made:
        return export_source(
            made,
            opened.weights,
            out,
            assets=assets,
            name=name or opened.name,
            origin=origin or opened.origin,
            precision=precision,
            target=target,
            quantization=quantization,
            budget=budget,
            genai=genai,
            hidden_states=hidden_states,
            attention_maps=attention_maps,
            int8_cache=int8_cache,
            force=force,
            report=report,
        )
