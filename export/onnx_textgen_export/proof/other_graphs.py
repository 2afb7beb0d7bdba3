"""Proof of the graphs that other runtimes open: they compute what the package's own graph computes.

The own graph is compared with PyTorch. Here ONNX Runtime runs both graphs on the same tokens, a prompt and then some tokens one by
one; of an encoder-decoder after a source. The graph for WebAssembly has its weights unpacked to float32, so it is compared with the
own graph in that arithmetic.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

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
    text, limit = ids[: text_length(WHOLE_LENGTH, source)], TOLERANCES[arithmetic].logits_error
    with as_export_error():
        expected = logits_of(source, open_session(own, device="cpu"), text, encoder=open_encoder(source, own))
        if source.encoder is not None:
            decoder, encoder = graphs
            got = logits_of(source, open_session(decoder, device="cpu"), text, encoder=open_session(encoder, device="cpu"))
            check_equal(named(decoder), got, expected, limit)
            return
        for path in graphs:
            if path.name == PurePosixPath(WASM_GRAPH).name:
                with in_float32(own) as session:
                    exact = logits_of(source, session, text)
                    check_equal(named(path), logits_of(source, open_unpacked(path), text), exact, TOLERANCES["fp32"].logits_error)
            else:
                check_equal(named(path), logits_of(source, open_session(path, device="cpu"), text), expected, limit)


def named(path: Path) -> str:
    """The name of a graph for others in its package."""
    return f"{SHARED_FOLDER}/{path.name}"


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


def check_equal(graph: str, got: npt.NDArray[np.floating[Any]], want: npt.NDArray[np.floating[Any]], limit: float) -> None:
    """Raise `ExportError` if the numbers of a graph differ by more than a part of the largest one."""
    error = float(np.abs(got - want).max()) / max(float(np.abs(want).max()), 1e-30)
    if not error <= limit:
        raise ExportError(f"{graph} disagrees with {GRAPH} (error {error:.1e}), so nothing was written; {LEAVE_OUT}")
