"""Proof of a draft head: the package gives it the hidden states that PyTorch's layers get, and it computes what PyTorch's does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from onnx_textgen.backends.signature import DRAFT_STATES, NEXT_STATES, OWN_STATES
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.package.manifest import DRAFT_HEAD_GRAPH, GRAPH, Precision

from ..errors import ExportError, as_export_error
from ..passes.quantization.rounding import Roundings
from ..sources.draft_head import DraftHead, embedding_of
from ..sources.hidden_inputs import inputs_of
from ..sources.source import Source
from ..weights.streamed import OwnWeights, Weights
from .measures import REMEDIES, relative_error
from .same_weights import opened_for_proof
from .scenarios import WHOLE_LENGTH

PIECES = (0.6, 0.8)
"""Shares of a text that are fed with the model's states in one run, and in two; the rest has the head's own states."""
Array = npt.NDArray[np.float32]


def prove_draft_head(
    head: DraftHead,
    source: Source,
    weights: Weights,
    folder: Path,
    ids: list[int],
    *,
    precision: Precision,
    roundings: Roundings | None,
    own: Roundings | None,
) -> dict[str, float]:
    """Relative errors, each of a text as one vector: of the states that the head reads, of those it gives, and of its logits.

    For a quantised package both sides use the same rounded weights; `own`: what was rounded of the head. Raises `ExportError`
    beyond the limit for logits.
    """
    text = ids[: min(WHOLE_LENGTH, source.geometry.context_length)]
    opened = opened_for_proof(source, folder / GRAPH, precision=precision, roundings=roundings)
    with as_export_error(), opened as (session, changes, tolerance):
        decoder = Decoder(session, source.geometry, extra_outputs=(DRAFT_STATES,))
        got = list[Array]()
        for part in np.array_split(text, 3):
            decoder.feed(part.tolist())
            got.append(decoder.last_extra_outputs[0][0])
        assert source.states is not None, "the head reads them"
        with weights.present(changes), torch.no_grad(), inputs_of(source.states.modules) as entered:
            source.reference(torch.tensor([text]))
            read, embeddings = torch.cat(entered, dim=-1), embedding_of(source.module)(torch.tensor([text[1:]]))
    errors = {"read_states_error": relative_error(np.concatenate(got), read[0].numpy())}
    with (
        as_export_error(),
        opened_for_proof(head.source, folder / DRAFT_HEAD_GRAPH, precision=precision, roundings=own) as (
            session,
            changes,
            own_tolerance,
        ),
    ):
        decoder = Decoder(session, head.source.geometry, extra_outputs=(NEXT_STATES,))
        logits, states, fed = feed(decoder, text[1:], read[:, :-1])
        with OwnWeights(head.source.module).present(changes), torch.no_grad():
            want, next_states = compute(head, embeddings, read[:, :-1], fed)
    errors["next_states_error"] = relative_error(states, next_states[0].numpy())
    errors["logits_error"] = relative_error(logits[:, head.guessed_ids], want[0][:, head.guessed_ids].numpy())
    limit = max(tolerance.logits_error, own_tolerance.logits_error)
    if found := next((f"{name} {error:.1e}" for name, error in errors.items() if not error <= limit), None):
        raise ExportError(f"the draft head disagrees with PyTorch's ({found}), so nothing was written; {REMEDIES[precision]}")
    return errors


def feed(decoder: Decoder, ids: list[int], read: Tensor) -> tuple[Array, Array, Array]:
    """Feed a text to the package's head, its beginning with the model's states [1, tokens, width] and the rest with its own.

    Returns logits [tokens, vocabulary], states [tokens, width], and the own states [tokens, width] that were fed.
    """
    first, second = (int(share * len(ids)) for share in PIECES)
    width = decoder.runner.roles[OWN_STATES].shape[-1]
    assert isinstance(width, int), "a head has one width"
    nothing, logits, states, fed = np.zeros((1, 0, width), np.float32), list[Array](), list[Array](), list[Array]()
    bounds = [(0, first), (first, second), *((at, at + 1) for at in range(second, len(ids)))]
    for start, end in bounds:
        known = read[:, start : min(end, second)] if start < second else read[:, :0]
        own = nothing if start < second else states[-1][None, -1:]
        decoder.runner.extra_inputs = {DRAFT_STATES: known.numpy(), OWN_STATES: own}
        logits.append(decoder.feed(ids[start:end], every_position=True))
        states.append(np.asarray(decoder.last_extra_outputs[0][0], np.float32))
        fed.append(own[0])
    return np.concatenate(logits), np.concatenate(states), np.concatenate(fed)


def compute(head: DraftHead, embeddings: Tensor, read: Tensor, fed: Array) -> tuple[Tensor, Tensor]:
    """PyTorch's logits and next states of the same text, in one pass without a cache."""
    module, positions = head.source.module, torch.arange(embeddings.shape[1])[None]
    assert head.source.states is not None, "a head gives states"
    with inputs_of(head.source.states.modules) as entered:
        logits = module(embeddings, read[:, : embeddings.shape[1] - len(fed)], torch.from_numpy(fed)[None], positions)
    return logits, entered[0]
