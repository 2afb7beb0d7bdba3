"""Proof of an export's hidden states: what the package gives as such is what PyTorch hands to its output layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from onnx_textgen.artifact import Precision
from onnx_textgen.decoder import Decoder
from onnx_textgen.embedding import pieces
from onnx_textgen.interface import HIDDEN_STATES
from onnx_textgen.session import open_session

from .errors import ExportError
from .parity import REMEDIES, TOLERANCES, WHOLE_LENGTH, why_it_does_not_run
from .sources import Source
from .trace import only_these_positions
from .weights import Weights

PIECE = 7


def prove_hidden_states(source: Source, weights: Weights, graph: Path, ids: list[int], precision: Precision) -> float:
    """How far the hidden states of a text are from PyTorch's, as a share of their length (of the whole text's as one vector).

    Raises `ExportError` beyond what the precision allows of logits.
    """
    text = ids[: min(WHOLE_LENGTH, source.geometry.context_length)]
    with why_it_does_not_run():
        decoder = Decoder(open_session(graph, device="cpu"), source.geometry, output=HIDDEN_STATES)
        cuts = pieces(len(text), PIECE, decoder.rotary_switch)
        parts = [decoder.feed(text[start:end], every_position=True) for start, end in cuts]
    got = np.concatenate(parts).astype(np.float64)
    with weights.present(), torch.no_grad(), only_these_positions(source.head, torch.arange(len(text))) as taken:
        source.reference(torch.tensor([text]))
    want = taken[0][0].double().numpy()
    error = float(np.linalg.norm(got - want) / np.linalg.norm(want))
    if not error <= TOLERANCES[precision].logits_error:
        raise ExportError(
            f"the hidden states disagree with PyTorch's (relative error {error:.1e}), so nothing was written; {REMEDIES[precision]}"
        )
    return error
