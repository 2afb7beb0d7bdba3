"""From a decoder to a proven model folder: trace, change the graph, write, compare with PyTorch, and keep only what agrees."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from torch import nn

from onnx_textgen.package.manifest import GRAPH, Manifest

from ..calibration.attempts import Measured, Traced, round_within_budget
from ..extra_graphs.int8_cache_graph import write_int8_cache_graph
from ..package.folder import check_target, new_folder, write_manifest
from ..package.forecast import check_disk
from ..passes.linear_layers import linear_layers_of
from ..passes.quantization.options import Quantization
from ..proof.probe_text import probe_ids
from ..reports import Report
from ..sources.source import Source
from ..tokenization.text_assets import TextAssets
from ..tracing.opening import Opened, as_source, open_source
from ..tracing.turns import in_turn
from ..weights.streamed import Weights, is_of_transformers
from .adapters import check_adapters, open_adapters, prove_adapters, write_adapters
from .checks import check_kept, check_source, estimate_line, forecast_lines, forecast_of, length_lines, retrieval_lines, text_lines
from .graphs import PackageWriter, optimized_graph
from .options import ExportKeywords, ExportOptions
from .proofs import prove_package
from .record import make_manifest
from .time_left import TimeLeft
from .unfinished import held_bytes, key_of, work_folder

if TYPE_CHECKING:
    from ..images.opening import Images
    from ..speech.opening import Speech


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export."""

    folder: Path
    manifest: Manifest


@in_turn
def export(
    source: str | Path | nn.Module,
    out: str | Path,
    *,
    report: Report = lambda stage: None,
    **options: Unpack[ExportKeywords],
) -> Exported:
    """Export a checkpoint, a transformers model or any decoder module to the model folder `out`, with proof.

    source: a Hugging Face checkpoint folder, `owner/name` on the hub, a `TinyTransformer` folder, a transformers model, or an
    `nn.Module` (or `file.py:name` of one) whose forward takes `(input_ids, position_ids, cache)` or `(input_ids,
    past_key_values=...)`. A module brings no text: give it `tokenizer` (a tokenizer.json) and `eos_ids`, or generate from token
    ids. options: the fields of `ExportOptions`, `precision="int4"` for example. `report` is told each stage as it begins. Threads
    that call this at once export one after the other.

    Raises `ExportError`, with nothing written, if the source cannot be traced or the package does not compute what PyTorch does.
    """
    asked = ExportOptions(**options)
    report("load")
    opened = open_source(source, tokenizer=asked.tokenizer, adapter=asked.adapter, allow_pickle=asked.allow_pickle, report=report)
    assets = dataclasses.replace(opened.assets, eos_ids=asked.eos_ids) if asked.eos_ids else opened.assets
    asked = dataclasses.replace(asked, name=asked.name or opened.name, origin=asked.origin or opened.origin)
    if reads_texts(opened.module):
        from .text_encoders import export_text_encoder  # noqa: PLC0415

        where, module, weights = opened.source_path, opened.module, opened.weights
        written = export_text_encoder(module, weights, out, assets=assets, options=asked, folder=where, report=report)
        return Exported(Path(out), written)
    with as_source(opened, asked.context_length) as made:
        images = None if asked.text_only else images_of(opened, report, asked)
        more: dict[str, Any] = {"source_path": opened.source_path, "report": report, "images": images}
        if made.encoder is not None and made.encoder.features is not None:
            from ..speech.opening import NEVER_FIRST, open_speech  # noqa: PLC0415

            more["speech"] = open_speech(made, opened.source_path, assets.tokenizer)
            left_out = {name: value for name, value in assets.left_out.items() if name != NEVER_FIRST}
            assets = dataclasses.replace(assets, left_out=left_out)
        return export_source(made, opened.weights, out, assets=assets, options=asked, **more)


def images_of(opened: Opened, report: Report, options: ExportOptions) -> Images | None:
    """What reads the pictures of a source; None if it reads text alone, or does not say how."""
    if not has_pictures(opened.module):
        return None
    from ..images.opening import open_images  # noqa: PLC0415

    where, most = opened.source_path, options.image_tokens
    return open_images(opened.module, opened.weights, where, report, target=options.target, most_tokens=most)


def has_pictures(module: nn.Module) -> bool:
    """Return whether a module is a model of transformers that reads pictures as well as text."""
    if not is_of_transformers(module):
        return False
    from ..images.opening import reads_images  # noqa: PLC0415

    return reads_images(module)


def reads_texts(module: nn.Module) -> bool:
    """Return whether a module is a text encoder of transformers, which generates nothing."""
    if not is_of_transformers(module):
        return False
    from ..huggingface.checkpoint import is_text_encoder  # noqa: PLC0415

    return is_text_encoder(cast(Any, module).config)


@in_turn
def export_source(
    source: Source,
    weights: Weights,
    out: str | Path,
    *,
    assets: TextAssets,
    options: ExportOptions,
    source_path: Path | None = None,
    images: Images | None = None,
    speech: Speech | None = None,
    report: Report = lambda stage: None,
) -> Exported:
    """Export `source` to the folder `out`; `report` is told each stage as it begins.

    source_path: the file or folder that the weights are read from, if one is; then an export that is interrupted can be resumed.
    images, speech: what reads the pictures or the sound of a source that reads them.

    Raises `ExportError`, with nothing written, if the model cannot be traced or its logits differ from PyTorch's.
    """
    target = Path(out)
    if images is not None:
        from .images import ImageWriter, with_images  # noqa: PLC0415

        source = with_images(source, images)
    options = options.for_source(is_quantized=bool(weights.stored), embeds=assets.embedding is not None)
    quantization = options.quantization_for(source.geometry.hidden_size)
    check_source(source, assets, options, quantization)
    check_target(target, force=options.force)
    adapters = open_adapters(options.adapters, source.module, allow_pickle=options.allow_pickle, report=report)
    ids = probe_ids(source, assets.tokenizer)
    expected = forecast_of(source, weights, options, quantization)
    check_disk(target, expected.package_bytes + expected.scratch_bytes - held_bytes(target))
    more = forecast_lines(source, weights, expected, options, quantization)
    for line in (*length_lines(source), *text_lines(assets), *retrieval_lines(assets), *more):
        report(line)
    report = TimeLeft(report, expected.stages)
    if quantization is not None and quantization.bits == 4:
        report("estimate")
        report(estimate_line(source, weights, assets, quantization, options))
    model = optimized_graph(source, weights, options, quantization, report)
    if quantization is not None and not options.requantise:
        check_kept(model.graph, weights.stored, quantization)
    check_adapters(adapters, linear_layers_of(model.graph))
    key = key_of(source_path, options)
    with new_folder(target, force=options.force) as folder, work_folder(target, key, report) as work:
        assets.write(folder)
        writer = PackageWriter(model, source, assets, folder, options)
        del model  # the writer alone holds it, and is gone before the proof
        rounded = write_package(writer, weights, quantization, work, report)
        del writer
        if options.int8_cache:
            report("scale the cache")
            write_int8_cache_graph(source, folder, assets.tokenizer)
        roundings = rounded.roundings if rounded is not None else None
        proven = prove_package(source, weights, folder, ids, roundings, options=options, report=report)
        if images is not None:
            report("images")
            image_writer = ImageWriter(images, source, weights, assets, options)
            image_writer.write(folder)
            image_writer.write_for_others(folder, roundings)
            report("compare, pictures")
            proven.more.update(image_writer.prove(folder, roundings).as_record())
            images = dataclasses.replace(images, record=image_writer.record(folder))
        proven.more.update({} if speech is None else speech.write(folder))
        write_adapters(folder, adapters)
        kept = prove_adapters(source, weights, folder, ids, adapters=adapters, roundings=roundings, options=options, report=report)
        manifest = make_manifest(source, assets, folder, proven, rounded, weights=weights, options=options)
        reads: dict[str, Any] = {"images": images and images.record, "speech": speech and speech.record}
        manifest = dataclasses.replace(manifest, adapters=kept, **reads)
        write_manifest(folder, manifest)
    return Exported(target, manifest)


def write_package(
    writer: PackageWriter, weights: Weights, quantization: Quantization | None, work: Path, report: Report
) -> Measured | None:
    """Write the graphs of a package, once per attempt to meet its budget; returns the chosen attempt of a quantised package.

    work: an empty folder for intermediate files.
    """
    if quantization is None:
        report("write")
        writer.write()
        return None
    options, graph = writer.options, writer.folder / GRAPH
    traced = Traced(writer.model, writer.source, weights, writer.assets, options.target, graph, work)
    budget = options.chosen_budget
    return round_within_budget(traced, options=quantization, budget=budget, write=writer.write, report=report)
