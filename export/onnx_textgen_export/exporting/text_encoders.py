"""From a text encoder to a proven model folder."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import onnx_ir as ir
from torch import nn

from onnx_textgen.package.hf_settings import read_json
from onnx_textgen.package.manifest import GRAPH, Manifest, Precision, TextEncoderRecord
from onnx_textgen.package.retrieval import EmbeddingSettings, PairScoring

from ..encoders.proof import LIMITS, Limits, Proof, Scenario, make_certificate, refuse_difference, texts_to_read
from ..encoders.sentence_modules import Pooling, SentenceModules, read_sentence_modules
from ..encoders.tracing import trace_text_encoder
from ..errors import ExportError
from ..extra_graphs.shared_graph import weights_name, write_shared_graph
from ..huggingface.text_encoder import TextEncoder, open_text_encoder
from ..package.folder import check_target, new_folder, records, write_manifest
from ..package.other_runtimes import write_text_encoder_settings
from ..package.writer import write_graph
from ..passes.order import Settings, run_passes
from ..passes.quantization.options import BLOCK_SIZES, Quantization
from ..reports import Report
from ..tokenization.retrieval_settings import MODEL_SETTINGS, read_modules
from ..tokenization.text_assets import TextAssets
from ..weights.streamed import Weights, put_parameter
from .options import ExportOptions
from .record import versions

REMEDIES = {"fp16": "; try --precision fp32", "int8": "; try --precision fp32", "int4": "; try --precision int8"}
"""What to do about a package that lost too much."""


def export_text_encoder(
    module: nn.Module,
    weights: Weights,
    out: str | Path,
    *,
    assets: TextAssets,
    options: ExportOptions,
    folder: Path | None,
    report: Report,
) -> Manifest:
    """Export a text encoder to the folder `out`, with proof; `folder`: its checkpoint.

    Raises `ExportError`, with nothing written, if it cannot be traced or does not compute what PyTorch does.
    """
    target = Path(out)
    refuse_options(options)
    if folder is not None and read_json(folder / MODEL_SETTINGS).get("do_lower_case"):
        raise ExportError(f"{folder} takes texts in lower case only, which is not known here")
    options = options.for_source(is_quantized=False, embeds=False)
    check_target(target, force=options.force)
    scoring = scoring_of(module)
    after = None if scoring is not None else modules_of(folder, options)
    materialize(module, weights)
    encoder = open_text_encoder(model_of(module, scoring), after, options.context_length)
    most = most_tokens(encoder, folder)
    forms, limits = forms_of(options, encoder), limits_of(options, encoder)
    proof = Proof(encoder, *texts_to_read(encoder, assets.tokenizer, most))
    report("trace")
    model = trace_text_encoder(encoder, options.target)
    run_passes("optimize", model, settings_for(options, encoder))
    with new_folder(target, force=options.force) as made:
        assets.write(made)
        exact = prove_unrounded(model, proof, made, options, report) if forms[0] is not None else []
        for form in forms:
            report("write")
            settings = settings_for(options, encoder, options.chosen_precision, form)
            write(model, made, settings)
            report("compare with PyTorch")
            measured, golden = proof.measure(made / GRAPH)
            if all(map(limits.admit, measured)):
                break
        if form is None:
            refuse_difference(measured, limits, remedy=REMEDIES.get(options.chosen_precision, ""))
        what = f"{options.chosen_precision} loses more than {limits.in_words()}"
        refuse_difference(measured, limits, what=what, remedy=REMEDIES.get(options.chosen_precision, ""))
        if options.other_runtimes:
            name = write_shared_graph(made, settings)
            write_text_encoder_settings(made, name, encoder.geometry, assets, most_tokens=most, scores=encoder.scores)
        files = records(made)
        size_bytes = sum(record.size for record in files.values())
        manifest = Manifest(
            name=options.name or "",
            target=options.target,
            precision=options.chosen_precision,
            geometry=encoder.geometry,
            bos_id=assets.bos_id,
            eos_ids=(),
            pad_id=assets.pad_id if assets.pad_id is not None else encoder.padding_id,
            files=files,
            quantization={} if form is None else form.as_record(),
            source=options.origin or "",
            versions=versions(),
            certificate=make_certificate(measured, limits, exact=exact, size_bytes=size_bytes),
            embedding=None if scoring is not None else settings_of(assets),
            text_encoder=TextEncoderRecord(most, golden, LIMITS[options.chosen_precision].error / 3),
            pair_scoring=scoring,
        )
        write_manifest(made, manifest)
    return manifest


def forms_of(options: ExportOptions, encoder: TextEncoder) -> list[Quantization | None]:
    """The forms of matrices to try, the smallest package first: those with smaller blocks also round inputs more finely."""
    found = options.quantization_for(encoder.geometry.hidden_size)
    if found is None:
        return [None]
    method = "k_quant" if found.method == "calibrated" else found.method
    sizes = [size for size in sorted(BLOCK_SIZES, reverse=True) if size <= found.block_size]
    sizes = sizes if options.quantization is None else [found.block_size]
    return [dataclasses.replace(found, method=method, block_size=size) for size in sizes]


def limits_of(options: ExportOptions, encoder: TextEncoder) -> Limits:
    """What the package may lose; rounding that keeps vectors within their cosine may move single numbers of a token."""
    limits, asked = LIMITS[options.chosen_precision], options.chosen_budget.min_cosine
    if options.chosen_precision in ("int8", "int4") and not encoder.scores:
        limits = dataclasses.replace(limits, error=math.inf)
    return limits if asked is None else dataclasses.replace(limits, cosine=asked)


def settings_for(
    options: ExportOptions, encoder: TextEncoder, precision: Precision = "fp32", form: Quantization | None = None
) -> Settings:
    """Settings of the passes for a package of that precision."""
    return Settings(options.target, encoder.geometry.context_length, precision, form, has_cache=False)


def write(model: ir.Model, folder: Path, settings: Settings) -> None:
    """Write the graph to a folder, in the form of the settings."""
    attempt = model.clone()
    run_passes("store", attempt, settings)
    write_graph(attempt, folder, weights=weights_name(settings))


def prove_unrounded(model: ir.Model, proof: Proof, folder: Path, options: ExportOptions, report: Report) -> list[Scenario]:
    """Compare the graph with PyTorch before its weights are rounded, so that rounding hides no fault of it."""
    report("compare, not rounded")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        write(model, Path(place), settings_for(options, proof.encoder))
        measured, _ = proof.measure(Path(place) / GRAPH)
    refuse_difference(measured, LIMITS["fp32"])
    return measured


def refuse_options(options: ExportOptions) -> None:
    """Raise `ExportError` for an option that a text encoder cannot have."""
    asked = {
        "--adapter NAME=DIR": options.adapters,
        "--int8-cache": options.int8_cache,
        "--attention-maps": options.attention_maps,
        "--eos-id": options.eos_ids,
        "--max-kl": options.chosen_budget.max_kl,
        "--target-size": options.chosen_budget.target_bytes,
        "--strict-bits": options.chosen_budget.strict_bits,
        "--calibrate": options.chosen_budget.calibration,
    }
    if found := [name for name, value in asked.items() if value]:
        raise ExportError(f"{found[0]} is for decoders, and the source is a text encoder; leave it out")


def materialize(module: nn.Module, weights: Weights) -> None:
    """Give the module its weights."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for each in names.values():
        put_parameter(module, each, nn.Parameter(weights.load(each[0]), requires_grad=False))


def model_of(module: nn.Module, scoring: PairScoring | None) -> Any:  # noqa: ANN401 - a class of transformers
    """The part of a model that is run: without a layer that fills gaps, if vectors are wanted."""
    return module if scoring is not None else cast(Any, module).base_model


def scoring_of(module: nn.Module) -> PairScoring | None:
    """How a model scores pairs; None for one that makes vectors. Raises `ExportError` for a classifier of several classes."""
    if not type(module).__name__.endswith("ForSequenceClassification"):
        return None
    config: Any = cast(Any, module).config
    if config.num_labels != 1:
        raise ExportError(f"{type(module).__name__} has {config.num_labels} classes; a cross-encoder, which scores pairs, has one")
    own: Mapping[str, Any] = getattr(config, "sentence_transformers", None) or {}
    named = own.get("activation_fn") or getattr(config, "sbert_ce_default_activation_function", None) or "torch.nn.Sigmoid"
    name = str(named).rpartition(".")[2]
    if name not in ("Sigmoid", "Identity"):
        raise ExportError(f"its scores go through {named}, which is not known here")
    return PairScoring(activation="identity" if name == "Identity" else "sigmoid")


def modules_of(folder: Path | None, options: ExportOptions) -> SentenceModules:
    """What comes after the model, as its folder says; the mean over the tokens if it says nothing."""
    modules = [] if folder is None else read_modules(folder)
    if not modules:
        return SentenceModules(Pooling(["mean"]))
    try:
        return read_sentence_modules(modules, allow_pickle=options.allow_pickle)
    except ExportError as error:
        raise ExportError(f"{folder} cannot be exported: {error}") from error


def settings_of(assets: TextAssets) -> EmbeddingSettings:
    """How vectors are made, for the manifest."""
    return dataclasses.replace(assets.embedding or EmbeddingSettings(), pooling="graph", refused="")


def most_tokens(encoder: TextEncoder, folder: Path | None) -> int:
    """The tokens to which a text is cut: as sentence-transformers does, by its settings or the tokenizer's, at most the context."""
    context = encoder.geometry.context_length
    if folder is None:
        return context
    own = read_json(folder / MODEL_SETTINGS).get("max_seq_length")
    stated = own or read_json(folder / "tokenizer_config.json").get("model_max_length")
    return min(context, stated) if isinstance(stated, int) and stated > 0 else context
