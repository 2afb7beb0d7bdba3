"""The draft head of an export: opened, written next to the model's graph, proved, and described in the manifest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import torch

from onnx_textgen.package.manifest import DRAFT_HEAD_GRAPH, DRAFT_HEAD_WEIGHTS, DraftHeadRecord

from ..errors import ExportError, named_versions
from ..extra_graphs.draft_head_graph import read_embeddings
from ..package.forecast import check_disk
from ..package.writer import weights_bytes, write_weights
from ..passes.order import Settings, run_passes
from ..passes.quantization.options import Quantization
from ..passes.quantization.rounding import Roundings
from ..proof.draft_head import prove_draft_head
from ..sources.draft_head import EMBEDDINGS, DraftHead, embedding_of, with_states
from ..sources.source import Source
from ..tracing.hub import resolve_source
from ..tracing.opening import name_of
from ..tracing.tracer import trace
from ..weights.streamed import Weights, blocks_of, is_of_transformers
from .options import ExportOptions

Report = Callable[[str], None]


def open_draft_head(source: Source, weights: Weights, options: ExportOptions, report: Report) -> tuple[Source, DraftHead | None]:
    """The source with the hidden states that a head reads, and the head; raises `ExportError` if they do not fit each other."""
    if options.draft_head is None:
        return source, None
    has_states = any("length" not in tensor.shape for tensor in source.cache)
    if source.encoder is None and (has_states or source.rotary_switch is not None):
        raise ExportError("--draft-head is for decoders whose cache can be rolled back, and this one's cannot; leave it out")
    if not is_of_transformers(source.module):
        raise ExportError("--draft-head is for transformers models, whose layers are known; leave it out")
    with named_versions():
        from ..huggingface.eagle_head import open_eagle_head  # noqa: PLC0415

    folder = resolve_source(options.draft_head, report, allow_pickle=options.allow_pickle)
    head = open_eagle_head(folder, source, allow_pickle=options.allow_pickle)
    check_table(head, source, weights)
    return with_states(source, list(blocks_of(source.module).values()), head.layers), head


def check_table(head: DraftHead, source: Source, weights: Weights) -> None:
    """Raise `ExportError` for a head whose checkpoint has another token embedding than the model."""
    if head.table is None:
        return
    name = next(name for name, part in source.module.named_modules() if part is embedding_of(source.module))
    own = weights.load(f"{name}.weight").to(head.table.dtype)
    if not torch.equal(own[: len(head.table)], head.table):
        raise ExportError("the draft head has a token embedding that is not the model's; give the head of this model")


def write_draft_head(head: DraftHead, folder: Path, options: ExportOptions, quantization: Quantization | None) -> Roundings | None:
    """Write the head's graph and its weights next to those of the model, which it reads too; returns what was rounded."""
    if quantization is not None and quantization.method == "calibrated":
        quantization = dataclasses.replace(quantization, method="k_quant")  # calibration sees the model's own layers only
    source = head.source
    settings = Settings(options.target, source.geometry.context_length, options.chosen_precision, quantization)
    model = trace(source, options.target)
    run_passes("optimize", model, settings)
    run_passes("store", model, settings)
    check_disk(folder, weights_bytes(model))
    write_weights(model, folder, DRAFT_HEAD_WEIGHTS)
    read_embeddings(model, folder, EMBEDDINGS)
    ir.save(model, folder / DRAFT_HEAD_GRAPH)
    return settings.roundings


def add_draft_head(
    head: DraftHead,
    source: Source,
    weights: Weights,
    folder: Path,
    ids: list[int],
    *,
    quantization: Quantization | None,
    roundings: Roundings | None,
    options: ExportOptions,
    report: Report,
) -> tuple[DraftHeadRecord, dict[str, float]]:
    """Write and prove the head of a written package; returns the manifest's entry, and what the proof measured."""
    report("draft head")
    own = write_draft_head(head, folder, options, quantization)
    measured = prove_draft_head(
        head, source, weights, folder, ids, precision=options.chosen_precision, roundings=roundings, own=own
    )
    assert options.draft_head is not None, "it was opened"
    return DraftHeadRecord(head.layers, f"the draft head {name_of(options.draft_head)}"), measured
