"""What the lean graph is worth: decode speed of one model at int4, its graph with the fusing passes and without.

    python benchmarks/export.py --shape llama-135m --work DIR    # makes DIR/llama-135m, random weights
    python benchmarks/lean.py DIR/llama-135m

Both graphs have the same int4 weights and the same attention operator; the unfused one lacks the passes of `passes/order.py` that
are there for speed (packed projections, rotary inside attention, skip connections in norms). Rounds of steps through the runtime's
decoder alternate between the two, and their medians are compared. The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.package.manifest import GRAPH
from onnx_textgen_export.package.writer import write_graph
from onnx_textgen_export.passes.canonical_linears import canonicalize_linears
from onnx_textgen_export.passes.order import Settings, run_passes, tidy
from onnx_textgen_export.passes.positions import gather_positions
from onnx_textgen_export.passes.quantization.options import DEFAULTS
from onnx_textgen_export.passes.quantization.stored_matrices import quantize
from onnx_textgen_export.sources.source import Source
from onnx_textgen_export.tracing.opening import as_source, open_source
from onnx_textgen_export.tracing.tracer import trace
from onnx_textgen_export.weights.streamed import Weights

PROMPT, STEPS = 64, 40
"""Tokens in the cache before a round, and steps of a round."""


def without_fusion(model: ir.Model) -> None:
    """What quantisation needs, and nothing for speed."""
    tidy(model)
    canonicalize_linears(model)
    gather_positions(model)


def make_graph(source: Source, weights: Weights, folder: Path, *, fused: bool) -> None:
    """Write one of the two graphs."""
    model = trace(source, "ort", weights)
    if fused:
        run_passes("optimize", model, Settings("ort", source.geometry.context_length))
    else:
        without_fusion(model)
    quantize(model, DEFAULTS["int4"])
    common_passes.RemoveUnusedNodesPass()(model)
    folder.mkdir(parents=True)
    write_graph(model, folder)


def step_seconds(decoder: Decoder) -> float:
    """The median time of a step behind the prompt."""
    decoder.rewind(PROMPT)
    times = []
    for token in range(STEPS):
        start = time.perf_counter()
        decoder.feed([token])
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Print nodes, speed and ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    opened, times = open_source(arguments.checkpoint), {"unfused": list[float](), "lean": list[float]()}
    with tempfile.TemporaryDirectory() as work, as_source(opened, None) as source:
        paths = {name: Path(work, name) for name in times}
        for name, path in paths.items():
            make_graph(source, opened.weights, path, fused=name == "lean")
        nodes = {name: len(ir.load(path / GRAPH).graph) for name, path in paths.items()}
        sessions = [open_session(path / GRAPH, device="cpu", threads=arguments.threads) for path in paths.values()]
        decoders = {name: Decoder(session, source.geometry) for name, session in zip(times, sessions, strict=True)}
        for decoder in decoders.values():
            decoder.feed(list(range(PROMPT)))
            step_seconds(decoder)  # warms up
        for _ in range(arguments.rounds):
            for name, decoder in decoders.items():
                times[name].append(step_seconds(decoder))
    for name, each in times.items():
        print(f"{name:8} {nodes[name]:5} nodes  {1 / statistics.median(each):6.1f} tokens/s")
    ratio = statistics.median(times["unfused"]) / statistics.median(times["lean"])
    print(
        f"lean over unfused: {ratio:.2f} ({arguments.threads} threads, int4, one token behind {PROMPT}, {arguments.rounds} rounds)"
    )


if __name__ == "__main__":
    main()
