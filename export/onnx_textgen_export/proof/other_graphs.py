"""Proof of the graphs that other runtimes open: they compute what the package's own graph computes.

The own graph is compared with PyTorch. Here ONNX Runtime runs both graphs on the same tokens, a prompt and then some tokens one by
one; of an encoder-decoder after a source. The graph for WebAssembly has its weights unpacked to float32, so it is compared with the
own graph in that arithmetic.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np

from onnx_textgen.backends.onnxruntime_session import OnnxRuntimeSession, make_options, open_on, open_session
from onnx_textgen.backends.protocol import CPU
from onnx_textgen.inference.graph_runner import Logits
from onnx_textgen.package.manifest import GRAPH, SHARED_FOLDER, WASM_GRAPH, Precision

from ..errors import ExportError, as_export_error
from ..sources.source import Source
from .measures import TOLERANCES
from .same_weights import in_float32
from .scenarios import WHOLE_LENGTH, decoders_of, open_encoder, source_ids_for, text_length

UNPACK = "session.disable_quant_qdq"
"""Session option with which ONNX Runtime unpacks constants when it opens a graph."""
STEPS = 8
LEAVE_OUT = "leave it out with --no-other-runtimes"


def graphs_for_others(folder: Path) -> list[Path]:
    """The graphs of a package that other runtimes open."""
    return sorted((folder / SHARED_FOLDER).glob("*.onnx"))


def prove_other_graphs(source: Source, graphs: list[Path], own: Path, ids: list[int], *, arithmetic: Precision) -> None:
    """Compare graphs with the own graph of the package; raises `ExportError` where one differs.

    arithmetic: of the package's activations, whose limits apply.
    """
    text = ids[: text_length(WHOLE_LENGTH, source)]
    with as_export_error():
        expected = logits_of(source, open_session(own, device="cpu"), text, encoder=open_encoder(source, own))
        if source.encoder is not None:
            decoder, encoder = graphs
            got = logits_of(source, open_session(decoder, device="cpu"), text, encoder=open_session(encoder, device="cpu"))
            check_equal(decoder, got, expected, arithmetic)
            return
        for path in graphs:
            if path.name == PurePosixPath(WASM_GRAPH).name:
                with in_float32(own) as session:
                    exact = logits_of(source, session, text)
                    check_equal(path, logits_of(source, open_unpacked(path), text), exact, "fp32")
            else:
                check_equal(path, logits_of(source, open_session(path, device="cpu"), text), expected, arithmetic)


def open_unpacked(graph: Path) -> OnnxRuntimeSession:
    """The graph for WebAssembly, opened as a browser opens it."""
    options = make_options(None)
    options.add_session_config_entry(UNPACK, "1")
    return open_on(graph, CPU, options)


def logits_of(source: Source, session: OnnxRuntimeSession, text: list[int], *, encoder: OnnxRuntimeSession | None = None) -> Logits:
    """Logits [1 + STEPS, vocabulary] after a prompt and after each of some further tokens; `encoder`: reads the source before."""
    new_decoder, prompt = decoders_of(source, session, encoder=encoder), text[:-STEPS] or text[:1]
    decoder = new_decoder(source_ids_for(source, text))
    return np.concatenate([decoder.feed(prompt), *(decoder.feed([token]) for token in text[len(prompt) :])])


def check_equal(graph: Path, got: Logits, want: Logits, arithmetic: Precision) -> None:
    """Raise `ExportError` if logits differ by more than the limits of an arithmetic."""
    error = float(np.abs(got - want).max()) / max(float(np.abs(want).max()), 1e-30)
    if not error <= TOLERANCES[arithmetic].logits_error:
        raise ExportError(
            f"{SHARED_FOLDER}/{graph.name} disagrees with {GRAPH} (logits error {error:.1e}), so nothing was written; {LEAVE_OUT}"
        )
