"""Proof of an encoder: its hidden states for a whole source are those of PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from onnx_textgen.backends.signature import ENCODER_STATES
from onnx_textgen.package.manifest import ENCODER_GRAPH, Precision

from ..errors import ExportError, as_export_error
from ..passes.quantization.rounding import Roundings
from ..sources.source import Source
from ..weights.streamed import Weights
from .measures import REMEDIES
from .same_weights import opened_for_proof
from .scenarios import reader_of


def prove_encoder_states(
    source: Source, weights: Weights, folder: Path, ids: list[int], *, precision: Precision, roundings: Roundings | None
) -> float:
    """Relative error of the encoder's hidden states, taken as one vector, against PyTorch's; ids: a source of any length.

    For a quantised package, both sides use the same rounded weights. Raises `ExportError` beyond the limit for logits.
    """
    assert source.encoder is not None, "the caller has checked"
    read = torch.tensor([ids[: source.encoder.source_length]])
    opened = opened_for_proof(source, folder / ENCODER_GRAPH, precision=precision, roundings=roundings)
    with as_export_error(), opened as (session, changes, tolerance):
        got = reader_of(source, session, [ENCODER_STATES]).encode(read[0].tolist()).tensors[ENCODER_STATES]
    with weights.present(changes), torch.no_grad():
        want = source.encoder.states(read).double().numpy()
    error = float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want))
    if not error <= tolerance.logits_error:
        raise ExportError(
            f"the encoder's states disagree with PyTorch's (relative error {error:.1e}), so nothing was written; "
            + REMEDIES[precision]
        )
    return error
