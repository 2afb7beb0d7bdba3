"""Checks, forecasts and estimates before anything is traced."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx_ir as ir

from onnx_textgen.errors import first_line
from onnx_textgen.package.manifest import Manifest

from ..calibration.attempts import limit_of
from ..calibration.quality import measured_tokens
from ..calibration.rounding_estimate import estimate_rounding
from ..calibration.texts import most_tokens
from ..errors import ExportError, innermost
from ..package.forecast import (
    BITS_OF_KEPT,
    Forecast,
    Stage,
    Stored,
    estimate_export,
    larger_than_source,
    speed_of_products,
    stored_parameters,
)
from ..passes.quantization.lossless import rounded_parameters
from ..passes.quantization.options import Quantization
from ..proof.attention_maps import check_attentions
from ..proof.certificate import SHORTEST_CONTEXT
from ..proof.int8_cache import check_int8_cache
from ..proof.scenarios import long_length
from ..sources.source import Source
from ..sources.stored_form import StoredForm
from ..tokenization.text_assets import TextAssets
from ..weights.streamed import OwnWeights, Weights
from .options import AS_STORED, ExportOptions


def check_source(source: Source, assets: TextAssets, options: ExportOptions, quantization: Quantization | None) -> None:
    """Refuse what cannot be proved or made: too short a context, special ids without logits, graphs that are impossible."""
    geometry = source.geometry
    if geometry.context_length < SHORTEST_CONTEXT:
        raise ExportError(f"a context of {geometry.context_length} is too short to prove; it takes at least {SHORTEST_CONTEXT}")
    for token_id in (assets.bos_id, assets.pad_id, *assets.eos_ids):
        if token_id is not None and not 0 <= token_id < geometry.vocab_size:
            raise ExportError(
                f"the special id {token_id} is outside the vocabulary of {geometry.vocab_size}; correct the source's config"
            )
    if options.chosen_budget.min_cosine is not None:
        raise ExportError("--min-cosine is for text encoders, and the source writes texts; take --max-kl")
    if source.encoder is not None:
        refuse_of_encoder_decoder(options)
    if options.attention_maps:
        check_attentions(source)
    if options.int8_cache:
        check_int8_cache(options.chosen_precision, options.target, quantization)


def refuse_of_encoder_decoder(options: ExportOptions) -> None:
    """Raise `ExportError` for an option that an encoder-decoder cannot have."""
    asked = {
        "--adapter NAME=DIR": options.adapters,
        "--int8-cache": options.int8_cache,
        "--hidden-states": options.hidden_states,
    }
    if found := [name for name, value in asked.items() if value]:
        raise ExportError(f"{found[0]} is for decoders, and the source is an encoder-decoder; leave it out")


def check_kept(graph: ir.Graph, stored: Mapping[str, StoredForm], quantization: Quantization) -> None:
    """Raise `ExportError` if a matrix of a quantised checkpoint would be rounded again, which is done only if it is asked for."""
    lost = [name for name in rounded_parameters(graph, quantization) if name in stored and not stored[name].may_round]
    if lost:
        raise ExportError(
            f"{lost[0]} ({len(lost)} in all) is stored as {stored[lost[0]].name} and no form of ours holds its numbers; "
            "add --requantise to round it again, or take --precision fp32 to keep the numbers in float32"
        )


def text_lines(assets: TextAssets) -> Iterator[str]:
    """Return a line on a doubtful tokenizer, and one on the makers' settings of generation that texts do not follow."""
    if assets.remark:
        yield assets.remark
    if assets.left_out:
        listed = ", ".join(f"{name} {value!s:.40}" for name, value in assets.left_out.items())
        yield f"settings: texts do not follow what the makers set: {listed}"


def length_lines(source: Source) -> Iterator[str]:
    """Return a line on a context length that was assumed because the source names none."""
    if source.has_assumed_length:
        length = source.geometry.context_length
        yield f"context: {length} tokens, because the model's config names no limit; --context-length changes it"


def retrieval_lines(assets: TextAssets) -> Iterator[str]:
    """Return a line for each part of the source's embedding or reranking that a package does not support."""
    if assets.embedding is not None and assets.embedding.refused:
        yield f"vectors: those of this model are not supported ({assets.embedding.refused}); embed needs a pooling as an argument"
    if assets.reranking is not None and assets.reranking.refused:
        yield f"scores: those of this reranker are not supported ({assets.reranking.refused})"


def forecast_lines(
    source: Source, weights: Weights, expected: Forecast, options: ExportOptions, quantization: Quantization | None
) -> Iterator[str]:
    """Return what an export will take, and a line if a package keeps numbers in more bytes than its source."""
    parameters = parameters_of(source, weights)
    is_exact = all(each.form in BITS_OF_KEPT for each in parameters if each.form)
    yield f"forecast: {expected.describe(is_limit=bool(weights.stored) and not (is_exact and options.precision == AS_STORED))}"
    if options.target == "ort" and (line := larger_than_source(parameters, quantization)) is not None:
        yield line


def parameters_of(source: Source, weights: Weights) -> list[Stored]:
    """Return the parameters of a decoder, and how the source stores them."""
    return stored_parameters(source.module, {name: form.name for name, form in weights.stored.items()})


def forecast_of(source: Source, weights: Weights, options: ExportOptions, quantization: Quantization | None) -> Forecast:
    """Forecast the disk, memory and time that an export needs."""
    has_gradients = quantization is not None and quantization.method == "calibrated" and quantization.bits == 4
    held = source.module.parameters() if isinstance(weights, OwnWeights) else ()
    return estimate_export(
        parameters_of(source, weights),
        layers=source.geometry.layers,
        precision=options.chosen_precision,
        options=quantization,
        target=options.target,
        resident_bytes=sum(4 * parameter.numel() for parameter in held),
        calibrated_numbers=most_tokens(source) * source.geometry.hidden_size if has_gradients else 0,
        tokens=tokens_read(source, quantization),
        speed=speed_of_products(),
    )


def tokens_read(source: Source, quantization: Quantization | None) -> dict[Stage, float]:
    """How many tokens PyTorch and the package read in each stage; a backward pass counts as two and a half forward passes."""
    found: dict[Stage, float] = {"compare": 2 * long_length(source)}
    if quantization is None:
        return found
    measured = measured_tokens(source)
    if quantization.keeps_stored:
        return found | {"read": measured / 2, "round": measured / 2}
    attempts = 3 if quantization.bits == 4 else 2
    found |= {"read": measured, "round": measured / 2 * (attempts + 1)}
    if quantization.method == "calibrated":
        backward = 2.5 if quantization.bits == 4 else 0
        found["calibrate"] = (1 + backward) * most_tokens(source, forward_only=quantization.bits == 8)
    return found


def estimate_line(source: Source, weights: Weights, assets: TextAssets, quantization: Quantization, options: ExportOptions) -> str:
    """One line on what 4 bits are likely to cost, or why there is no estimate (code that takes no batch, for example)."""
    budget = options.chosen_budget
    try:
        found = estimate_rounding(source, weights, assets, quantization, budget, target=options.target)
    except (RuntimeError, ValueError, TypeError, LookupError, NotImplementedError) as error:
        return f"no estimate: {first_line(innermost(error))}"
    is_fixed = bool(quantization.head_bits or quantization.sensitive_bits)
    return found.describe(budget, limit_of(quantization, budget), is_fixed=is_fixed)


def check_same_sizes(folder: Path, manifest: Manifest, name: str, source: Source) -> None:
    """Raise `ExportError` for a source, called `name`, that the package in `folder` was not exported from."""
    for size, found in dataclasses.asdict(source.geometry).items():
        if found != (wanted := getattr(manifest.geometry, size)):
            raise ExportError(
                f"{folder} has {size} {wanted} and {name} has {found}; give the source that the package was exported from"
            )
