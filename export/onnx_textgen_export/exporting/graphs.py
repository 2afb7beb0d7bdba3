"""From a source to the graphs of a package: trace, optimize, store at a precision, and write."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import onnx_ir as ir

from onnx_textgen.package.manifest import GRAPH

from ..extra_graphs.attention_graph import write_attention_graph
from ..extra_graphs.bidirectional import add_bidirectional_attention
from ..extra_graphs.int8_cache_graph import int8_cache_bytes
from ..extra_graphs.seq2seq_graphs import opens_as_seq2seq, write_seq2seq_graphs
from ..extra_graphs.shared_graph import opens_elsewhere, precision_suffix, weights_name, write_shared_graph
from ..extra_graphs.wasm_graph import write_wasm_graph
from ..package.forecast import check_disk
from ..package.other_runtimes import write_seq2seq_settings, write_settings
from ..package.writer import weights_bytes, write_graph
from ..passes.order import Settings, is_float16, run_passes
from ..passes.quantization.options import Quantization
from ..passes.quantization.plan import Plan
from ..passes.quantization.rounding import Roundings
from ..reports import Report
from ..sources.source import Source
from ..tokenization.text_assets import TextAssets
from ..tracing.tracer import trace
from ..weights.streamed import Weights
from .options import ExportOptions

MANIFEST_BYTES = 12_000
"""More than a manifest takes."""


def optimized_graph(
    source: Source, weights: Weights, options: ExportOptions, quantization: Quantization | None, report: Report
) -> ir.Model:
    """The source as a small graph in float32; its large weights are not read."""
    report("trace")
    more = {"hidden_states": options.hidden_states, "attention_maps": options.attention_maps}
    model = trace(source, options.target, weights, **more)
    settings = Settings(options.target, source.geometry.context_length, options.chosen_precision, quantization, weights.stored)
    run_passes("optimize", model, settings)
    return model


@dataclasses.dataclass(frozen=True, slots=True)
class PackageWriter:
    """Writes the graphs of a package; a quantised one is written once for every attempt to round it."""

    model: ir.Model
    """Optimized, in float32; writing leaves it unchanged."""
    source: Source
    assets: TextAssets
    folder: Path
    options: ExportOptions

    def write(self, quantization: Quantization | None = None, plan: Plan | None = None) -> tuple[int, Roundings | None]:
        """Write the package's graphs; returns the bytes of the package, and what was rounded.

        The bytes include the manifest and the graph of an 8-bit cache, which are written later.
        """
        options, folder = self.options, self.folder
        length, precision = self.source.geometry.context_length, options.chosen_precision
        settings = Settings(options.target, length, precision, quantization, plan=plan)
        attempt = self.model.clone()
        run_passes("store", attempt, settings)
        check_disk(folder, weights_bytes(attempt))  # exact, with tables that the passes made
        write_graph(attempt, folder, weights=weights_name(settings, self.source))
        if options.other_runtimes and opens_elsewhere(self.source, self.assets):
            name = write_shared_graph(folder, settings)
            if not is_float16(settings):
                write_wasm_graph(folder, name)
            write_settings(folder, name, self.source, self.assets, options.target)
        if options.other_runtimes and opens_as_seq2seq(self.source, self.assets):
            write_seq2seq_graphs(folder, settings)
            write_seq2seq_settings(folder, precision_suffix(settings), self.source, self.assets)
        if options.attention_maps and self.source.encoder is None:  # that of an encoder-decoder was written with its halves
            write_attention_graph(folder, self.source.geometry.heads)
        if self.source.images is not None and self.source.images.bidirectional:  # last: the others read text alone
            add_bidirectional_attention(folder)
        later = MANIFEST_BYTES + (int8_cache_bytes(self.source, folder / GRAPH) if options.int8_cache else 0)
        written = sum(entry.stat().st_size for entry in folder.rglob("*") if entry.is_file())
        return written + later, settings.roundings
