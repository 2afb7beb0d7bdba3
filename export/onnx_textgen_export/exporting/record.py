"""The manifest of a proven folder."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import onnx
import onnxruntime
import torch

from onnx_textgen.package.manifest import EncoderRecord, Manifest

from ..calibration.attempts import Measured
from ..package.folder import records
from ..proof.certificate import make_certificate
from ..sources.source import Source
from ..tokenization.text_assets import TextAssets
from ..weights.streamed import Weights
from .options import ExportOptions
from .proofs import Proven


def versions() -> dict[str, str]:
    """Exporter and libraries; transformers where it was imported, as for every checkpoint."""
    libraries = {"torch": torch, "transformers": sys.modules.get("transformers"), "onnx": onnx, "onnxruntime": onnxruntime}
    return {
        "onnx-textgen": version("onnx-textgen"),
        **{name: str(library.__version__) for name, library in libraries.items() if library},
    }


def make_manifest(
    source: Source,
    assets: TextAssets,
    folder: Path,
    proven: Proven,
    rounded: Measured | None,
    *,
    weights: Weights,
    options: ExportOptions,
) -> Manifest:
    """The manifest of a folder whose other files are written; `rounded`: the attempt that was kept, of a quantised package."""
    files = records(folder)
    certificate = make_certificate(
        source,
        proven.compared.measured,
        proven.compared.exact,
        options.chosen_precision,
        size_bytes=sum(record.size for record in files.values()),
        quality=rounded.quality if rounded is not None else None,
        arithmetic=rounded.roundings.arithmetic if rounded is not None else "fp32",
    )
    encoder = None
    if source.encoder is not None:
        encoder = EncoderRecord(
            source.encoder.source_length,
            assets.start_ids or source.encoder.start_ids,
            assets.suppressed_ids or source.encoder.suppressed_ids,
        )
    return Manifest(
        name=options.name or "",
        target=options.target,
        encoder=encoder,
        precision=options.chosen_precision,
        geometry=source.geometry,
        bos_id=assets.bos_id,
        eos_ids=assets.eos_ids,
        pad_id=assets.pad_id,
        files=files,
        quantization=rounded.as_record(weights.stored) if rounded is not None else {},
        generation=assets.generation,
        left_out=assets.left_out,
        source=options.origin or "",
        versions=versions(),
        certificate=certificate | proven.more,
        golden=proven.compared.golden,
        embedding=assets.embedding,
        reranking=assets.reranking,
    )
