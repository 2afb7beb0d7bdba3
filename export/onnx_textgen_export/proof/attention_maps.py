"""Proof that a package's attention maps are PyTorch's."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from onnx_textgen.package.manifest import ENCODER_GRAPH, Precision
from onnx_textgen.tasks.attention_maps import read_maps

from ..errors import ExportError, as_export_error
from ..passes.quantization.rounding import Roundings
from ..sources.source import Source
from ..weights.streamed import Weights
from .measures import REMEDIES, relative_error
from .same_weights import opened_for_proof
from .scenarios import LAST_STEPS, WHOLE_LENGTH, reader_of, source_ids_for

PIECE = 7
LONGEST_WINDOW = 512
"""The proof's text crosses windows up to this length."""
Array = npt.NDArray[np.float64]


def check_attentions(source: Source) -> None:
    """Raise `ExportError` for a decoder whose attention PyTorch does not return."""
    if source.attentions is None and source.encoder is None:
        raise ExportError(
            f"no attention maps: {type(source.module).__name__} attends by its own code or has a recurrent state; "
            "leave out --attention-maps"
        )


def prove_attention_maps(
    source: Source, weights: Weights, graph: Path, ids: list[int], *, precision: Precision, roundings: Roundings | None
) -> float:
    """Relative error of a text's attention weights, taken as one vector, against PyTorch's; of a source's too, if it is larger.

    For a quantised package, both sides use the same rounded weights, and the limit is that of fp32. Raises `ExportError` beyond
    it, and if a token attends to a later one.
    """
    windows = [window for window in source.windows if window <= LONGEST_WINDOW]
    text = ids[: min(max([WHOLE_LENGTH, *(window + LAST_STEPS for window in windows)]), source.geometry.context_length)]
    rows, read = min(len(text), WHOLE_LENGTH), source_ids_for(source, ids)
    opened = functools.partial(opened_for_proof, source, precision=precision, roundings=roundings)
    with as_export_error(), contextlib.ExitStack() as stack:
        session, changes, tolerance = stack.enter_context(opened(graph))
        encoder = None
        if source.encoder is not None:
            reading, *_ = stack.enter_context(opened(graph.with_name(ENCODER_GRAPH)))
            encoder = reader_of(source, reading, list(session.encoder_inputs))
        _, maps, cross = read_maps(session, source.geometry, text, rows=rows, size=PIECE, encoder=encoder, source_ids=read)
    with weights.present(changes), torch.no_grad():
        want = reference_of(source, text, rows, read)
    error = difference(maps.astype(np.float64), want[0])
    if source.encoder is not None:
        error = max(error, relative_error(cross.astype(np.float64), want[1]))
    if not error <= tolerance.logits_error:
        raise ExportError(
            f"the attention maps are not PyTorch's (relative error {error:.1e}), so nothing was written; {REMEDIES[precision]}"
        )
    return error


def reference_of(source: Source, text: list[int], rows: int, read: list[int]) -> list[Array]:
    """PyTorch's weights [layers, heads, rows, tokens] of a text; of an encoder-decoder those of the source `read` follow."""
    ids = torch.tensor([text])
    if source.encoder is None:
        assert source.attentions is not None, "check_attentions has checked"
        return [torch.cat(source.attentions(ids, rows)).double().numpy()]
    found = source.encoder.attentions(ids, torch.tensor([read]))
    halves = found[: len(found) // 2], found[len(found) // 2 :]
    return [torch.cat(half)[:, :, -rows:].double().numpy() for half in halves]


def difference(got: Array, want: Array) -> float:
    """The relative error of maps [layers, heads, rows, tokens]; infinite if a token attends to a later one."""
    rows, tokens = got.shape[2:]
    ahead = np.arange(tokens)[None] > np.arange(tokens - rows, tokens)[:, None]
    return float("inf") if got[..., ahead].any() else relative_error(got, want)
