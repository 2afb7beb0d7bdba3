"""Proof of the graphs that other runtimes open: they compute what the package's own graph computes.

The own graph is compared with PyTorch. Here ONNX Runtime runs both graphs on the same tokens, a prompt and then some tokens one by
one. The graph for WebAssembly has its weights unpacked to float32, so it is compared with the own graph in that arithmetic.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from onnx_textgen.backends.onnxruntime_session import Session, make_options, open_on, open_session
from onnx_textgen.backends.protocol import CPU
from onnx_textgen.inference.graph_runner import Logits
from onnx_textgen.package.manifest import GRAPH, SHARED_FOLDER, WASM_GRAPH, Precision

from ..errors import ExportError, as_export_error
from ..sources.source import Source
from .measures import TOLERANCES
from .same_weights import in_float32
from .scenarios import WHOLE_LENGTH, decoders_of

UNPACK = "session.disable_quant_qdq"
"""Session option with which ONNX Runtime unpacks constants when it opens a graph."""
STEPS = 8


def prove_other_graphs(source: Source, folder: Path, ids: list[int], *, arithmetic: Precision) -> None:
    """Compare the graphs in the folder `onnx` with the own graph, if there are any; raises `ExportError` where one differs.

    arithmetic: of the package's activations, whose limits apply.
    """
    text = ids[: min(WHOLE_LENGTH, source.geometry.context_length)]
    wasm = folder / WASM_GRAPH
    others = [path for path in sorted((folder / SHARED_FOLDER).glob("*.onnx")) if path != wasm]
    with as_export_error():
        if others:
            own = logits_of(source, open_session(folder / GRAPH, device="cpu"), text)
        for path in others:
            check_equal(path, logits_of(source, open_session(path, device="cpu"), text), own, arithmetic)
        if wasm.exists():
            with in_float32(folder / GRAPH) as session:
                exact = logits_of(source, session, text)
                check_equal(wasm, logits_of(source, open_unpacked(wasm), text), exact, "fp32")


def open_unpacked(graph: Path) -> Session:
    """The graph for WebAssembly, opened as a browser opens it."""
    options = make_options(None)
    options.add_session_config_entry(UNPACK, "1")
    return open_on(graph, CPU, options)


def logits_of(source: Source, session: Session, text: list[int]) -> Logits:
    """Logits [1 + STEPS, vocabulary] after a prompt and after each of some further tokens."""
    decoder, prompt = decoders_of(source, session)(), text[:-STEPS] or text[:1]
    return np.concatenate([decoder.feed(prompt), *(decoder.feed([token]) for token in text[len(prompt) :])])


def check_equal(graph: Path, got: Logits, want: Logits, arithmetic: Precision) -> None:
    """Raise `ExportError` if logits differ by more than the limits of an arithmetic."""
    error = float(np.abs(got - want).max()) / max(float(np.abs(want).max()), 1e-30)
    if not error <= TOLERANCES[arithmetic].logits_error:
        raise ExportError(
            f"{SHARED_FOLDER}/{graph.name} disagrees with {GRAPH} (logits error {error:.1e}), so nothing was written; "
            "leave it out with --no-other-runtimes"
        )
