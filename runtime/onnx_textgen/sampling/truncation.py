"""Truncation samplers: each takes logits and returns the indices, ascending, of the tokens that may still be drawn.

Logits are float32 [tokens], at least one of them finite; -inf marks a token that an earlier stage banned. There are few arrays as
long as the vocabulary, because getting their memory from the system costs more than filling them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]

COLUMN = 64
"""Logits per maximum in the search for the k largest."""


def top_k_ids(logits: Floats, k: int) -> Ids:
    """Keep the k largest logits, and all that equal the smallest of them.

    >>> top_k_ids(np.float32([3, 1, 2, 2]), 2).tolist()
    [0, 2, 3]
    """
    if k >= logits.size:
        return np.arange(logits.size)
    columns = logits.size // COLUMN
    if columns <= k:
        return np.flatnonzero(logits >= np.partition(logits, -k)[-k])
    # At least k logits reach the k-th largest column maximum, so the k largest all do: few remain to compare.
    maxima = logits[: columns * COLUMN].reshape(COLUMN, columns).max(axis=0)
    ids = np.flatnonzero(logits >= np.partition(maxima, -k)[-k])
    few = logits[ids]
    kept: Ids = ids[few >= np.partition(few, -k)[-k]]
    return kept


def top_p_ids(logits: Floats, p: float) -> Ids:
    """Keep the nucleus: all but the least likely tokens whose probabilities sum to at most 1 - p, and always the most likely one.

    If logits at the border are equal, the higher ids stay, as in transformers when its sort is stable (torch promises no order).
    Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration".

    >>> top_p_ids(np.log(np.float32([0.125, 0.5, 0.25, 0.125])), 0.7).tolist()
    [1, 2]
    """
    probabilities = softmax(logits)
    # Those below (1 - p) / n sum to less than 1 - p: they are removed without a sort, nearly all of a large vocabulary.
    order = np.flatnonzero(probabilities >= min((1 - p) / logits.size, float(probabilities.max())))
    cut_already = probabilities.sum(dtype=np.float64) - probabilities[order].sum(dtype=np.float64)
    order = order[np.argsort(logits[order])]
    # Summed in float64 and compared in float32, like torch: that decides exact ties at the border.
    cumulative = cut_already + np.cumsum(probabilities[order], dtype=np.float64)
    first_kept = min(int(np.searchsorted(cumulative.astype(np.float32), np.float32(1 - p), side="right")), order.size - 1)
    ascending, border = logits[order], logits[order[first_kept]]
    ties = slice(np.searchsorted(ascending, border, side="left"), np.searchsorted(ascending, border, side="right"))
    order[ties].sort()  # a stable sort of the whole array would take ten times as long
    return np.sort(order[first_kept:])


def min_p_ids(logits: Floats, p: float) -> Ids:
    """Keep the tokens that are at least `p` times as likely as the most likely one.

    Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling".

    >>> min_p_ids(np.log(np.float32([0.125, 0.5, 0.25, 0.125])), 0.4).tolist()
    [1, 2]
    """
    probabilities = softmax(logits)
    return np.flatnonzero(probabilities >= np.float32(p) * probabilities.max())


def softmax(logits: Floats, *, out: Floats | None = None) -> Floats:
    """Turn logits, at least one of them finite, into probabilities of the same shape [vocab] and dtype; `out` may be `logits`.

    >>> softmax(np.float32([0, 0, -np.inf])).tolist()
    [0.5, 0.5, 0.0]
    """
    with np.errstate(over="ignore"):  # the difference of two finite logits may be infinite
        weights: Floats = np.subtract(logits, logits.max(), out=out)
    np.exp(weights, out=weights)
    weights /= float(weights.sum(dtype=np.float64))
    return weights
