"""Proof that a package's attention maps are PyTorch's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from onnx_textgen.inference.attention_maps import read_maps
from onnx_textgen.package.manifest import Precision

from ..errors import ExportError, as_export_error
from ..passes.quantization.rounding import Roundings
from ..sources.source import Attentions, Source
from ..weights.streamed import Weights
from .measures import REMEDIES
from .same_weights import opened_for_proof
from .scenarios import LAST_STEPS, WHOLE_LENGTH

PIECE = 7
LONGEST_WINDOW = 512
"""The proof's text crosses windows up to this length."""
Array = npt.NDArray[np.float64]


def attentions_of(source: Source) -> Attentions:
    """The function that computes attention in PyTorch; raises `ExportError` for a decoder without one."""
    if source.attentions is None:
        raise ExportError(
            f"no attention maps: {type(source.module).__name__} attends by its own code or has a recurrent state; "
            "leave out --attention-maps"
        )
    return source.attentions


def prove_attention_maps(
    source: Source, weights: Weights, graph: Path, ids: list[int], *, precision: Precision, roundings: Roundings | None
) -> float:
    """Relative error of a text's attention weights, taken as one vector, against PyTorch's.

    For a quantised package, both sides use the same rounded weights, and the limit is that of fp32. Raises `ExportError` beyond
    it, and if a token attends to a later one.
    """
    windows = [window for window in source.windows if window <= LONGEST_WINDOW]
    text = ids[: min(max([WHOLE_LENGTH, *(window + LAST_STEPS for window in windows)]), source.geometry.context_length)]
    rows = min(len(text), WHOLE_LENGTH)
    opened = opened_for_proof(source, graph, precision=precision, roundings=roundings)
    with as_export_error(), opened as (session, changes, tolerance):
        _, maps = read_maps(session, source.geometry, text, rows=rows, size=PIECE)
    with weights.present(changes), torch.no_grad():
        reference = attentions_of(source)(torch.tensor([text]), rows)
    got, want = maps.astype(np.float64), torch.cat(reference).double().numpy()
    error = difference(got, want)
    if not error <= tolerance.logits_error:
        raise ExportError(
            f"the attention maps are not PyTorch's (relative error {error:.1e}), so nothing was written; {REMEDIES[precision]}"
        )
    return error


def difference(got: Array, want: Array) -> float:
    """The relative error of maps [layers, heads, rows, tokens]; infinite if a token attends to a later one."""
    rows, tokens = got.shape[2:]
    ahead = np.arange(tokens)[None] > np.arange(tokens - rows, tokens)[:, None]
    if got.shape != want.shape or got[..., ahead].any():
        return float("inf")
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))
