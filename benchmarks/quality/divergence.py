"""How far the predictions of one model are from those of another, token by token."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROWS = 128
"""Positions compared at a time, so that float64 logits of the whole text are never there at once."""
Array = npt.NDArray[np.float64]
Logits = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class Divergence:
    """What a model loses against the reference."""

    kl: float
    """KL(reference || model), nats per token, the mean over all positions."""
    kl_99: float
    """Its 99th percentile."""
    same_top: float
    """Share of the positions whose likeliest token is the reference's."""
    perplexity: float
    """Relative change of the perplexity of the tokens that really follow: 0.01 is one per cent worse."""


def open_logits(path: Path, positions: int) -> Logits:
    """A file of float32 logits as an array [positions, vocabulary]."""
    return np.memmap(path, dtype=np.float32, mode="r").reshape(positions, -1)


def log_softmax(logits: Logits) -> Array:
    """Log-probabilities of each row, float64.

    >>> log_softmax(np.zeros((1, 2), dtype=np.float32)).round(4).tolist()
    [[-0.6931, -0.6931]]
    """
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def parts(reference: Logits, found: Logits) -> Iterator[tuple[slice, Array, Array]]:
    """Log-probabilities of both, some rows at a time."""
    for start in range(0, len(reference), ROWS):
        rows = slice(start, start + ROWS)
        yield rows, log_softmax(reference[rows]), log_softmax(found[rows])


def diverge(reference: Logits, found: Logits, windows: Sequence[Sequence[int]]) -> Divergence:
    """Compare logits [positions, vocabulary] of the same windows, one after the other. Padding of the vocabulary is left out."""
    if found.shape[1] < reference.shape[1]:
        raise ValueError(f"expected logits of {reference.shape[1]:,} tokens, found {found.shape[1]:,}")
    following = np.concatenate([[*ids[1:], -1] for ids in windows])  # -1: the text ends, nothing follows
    divergences, same, losses = [], [], []
    for rows, want, got in parts(reference, found[:, : reference.shape[1]]):
        divergences.append((np.exp(want) * (want - got)).sum(axis=1))
        same.append(want.argmax(axis=1) == got.argmax(axis=1))
        places = np.flatnonzero(following[rows] >= 0)
        ids = following[rows][places]
        losses.append(want[places, ids] - got[places, ids])
    kl = np.concatenate(divergences)
    return Divergence(
        kl=float(kl.mean()),
        kl_99=float(np.quantile(kl, 0.99)),
        same_top=float(np.concatenate(same).mean()),
        perplexity=float(np.expm1(np.concatenate(losses).mean())),
    )
