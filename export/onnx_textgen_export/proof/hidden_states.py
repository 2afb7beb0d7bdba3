"""Proof of an export's hidden states: the package returns what PyTorch passes to its output layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from onnx_textgen.backends.signature import HIDDEN_STATES
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.package.manifest import Precision
from onnx_textgen.tasks.embeddings import part_bounds

from ..errors import ExportError, as_export_error
from ..passes.quantization.rounding import Roundings
from ..sources.output_layer import only_these_positions
from ..sources.source import Source
from ..weights.streamed import Weights
from .measures import REMEDIES
from .same_weights import opened_for_proof
from .scenarios import WHOLE_LENGTH, text_length

PIECE = 7


def prove_hidden_states(
    source: Source, weights: Weights, graph: Path, ids: list[int], *, precision: Precision, roundings: Roundings | None
) -> float:
    """Relative error of a text's hidden states, taken as one vector, against PyTorch's.

    For a quantised package, both sides use the same rounded weights. Raises `ExportError` beyond the limit for logits.
    """
    text = ids[: text_length(WHOLE_LENGTH, source)]
    opened = opened_for_proof(source, graph, precision=precision, roundings=roundings)
    with as_export_error(), opened as (session, changes, tolerance):
        decoder = Decoder(session, source.geometry, output=HIDDEN_STATES)
        cuts = part_bounds(len(text), PIECE, decoder.capabilities.rope_switch_length)
        parts = [decoder.feed(text[start:end], every_position=True) for start, end in cuts]
    got = np.concatenate(parts).astype(np.float64)
    with weights.present(changes), torch.no_grad(), only_these_positions(source.head, torch.arange(len(text))) as taken:
        source.reference(torch.tensor([text]))
    want = taken[0][0].double().numpy()
    error = float(np.linalg.norm(got - want) / np.linalg.norm(want))
    if not error <= tolerance.logits_error:
        raise ExportError(
            f"the hidden states disagree with PyTorch's (relative error {error:.1e}), so nothing was written; {REMEDIES[precision]}"
        )
    return error
