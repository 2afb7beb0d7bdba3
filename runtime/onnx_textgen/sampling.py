"""From one row of logits to one token id: temperature, top-k, top-p, min-p, in this order, then a draw.

Arrays in, arrays out: no state, no clock, no file. The four steps equal the logits warpers of transformers, ties included.
Randomness is counter-based: a draw is a function of (seed, sample, step) alone, so a text comes out the same alone, in any row
of a batch, streamed or not. Which options there are is `GenerationConfig`'s business; when to stop is the loop's.

Speed comes from two habits: each filter works on what the one before it left, and arrays as long as the vocabulary are few,
because getting their memory from the system costs more than filling them.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from .errors import ModelError
from .generation_config import GenerationConfig

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]

COLUMN = 64
"""Logits per maximum when looking for the k largest."""
BLOCK = 512
"""Probabilities per partial sum when looking for the one drawn."""


class Sampler(Protocol):
    """Picks one token."""

    def __call__(self, logits: Floats, seed: int, sample: int, step: int) -> int:
        """Pick an id from float32 logits [vocab]; raises `ModelError` if they are not numbers."""


def make_sampler(config: GenerationConfig) -> Sampler:
    """Make the sampler `config` asks for: greedy at temperature 0, else the chain of filters and a draw.

    >>> make_sampler(GenerationConfig(temperature=0))(np.float32([0.1, 2.0, 2.0]), seed=0, sample=0, step=0)
    1
    """

    def draw(logits: Floats, seed: int, sample: int, step: int) -> int:
        ids, scores = survivors(logits, config)
        # By id, not by rank: noise in the logits may swap two ranks, which would move every boundary between them.
        index = index_at(softmax(scores, out=scores), uniform(seed, sample, step))
        return index if ids is None else int(ids[index])

    return pick_greedy if config.temperature == 0 else draw


def pick_greedy(logits: Floats, seed: int, sample: int, step: int) -> int:
    """Pick the id of the largest logit, the lowest such id if several are equal; a `Sampler` that draws nothing."""
    return most_likely(logits)


def candidates(logits: Floats, config: GenerationConfig, *, limit: int | None = None) -> tuple[Ids, Floats]:
    """List what a draw chooses from, most likely first: ids and their probabilities after the chain, at most `limit` of them.

    Greedy leaves one id with probability 1. Raises `ModelError` if the logits are not numbers.

    >>> ids, probabilities = candidates(np.log(np.float32([0.25, 0.5, 0.125])), GenerationConfig(temperature=0.5, top_k=2))
    >>> ids.tolist(), [f"{p:.3f}" for p in probabilities]
    ([1, 0], ['0.800', '0.200'])
    """
    ids, scores = survivors(logits, config)
    probabilities = softmax(scores)
    kept = np.flatnonzero(probabilities) if limit is None else top_k_ids(probabilities, limit)
    kept = kept[np.argsort(-probabilities[kept], kind="stable")][:limit]
    return kept if ids is None else ids[kept], probabilities[kept]


def survivors(logits: Floats, config: GenerationConfig) -> tuple[Ids | None, Floats]:
    """Run the whole chain: the ids that may be drawn, ascending (None: all), and a new array of their scaled logits."""
    best = most_likely(logits)
    if config.temperature == 0:
        return np.array([best]), logits[best : best + 1].copy()
    scores = apply_temperature(logits, config.temperature)
    ids = None
    if config.top_k > 0:
        ids = top_k_ids(scores, config.top_k)
        scores = scores[ids]
    if config.top_p < 1:
        kept = top_p_ids(scores, config.top_p)
        ids, scores = kept if ids is None else ids[kept], scores[kept]
    if config.min_p > 0:
        kept = min_p_ids(scores, config.min_p)
        ids, scores = kept if ids is None else ids[kept], scores[kept]
    return ids, scores


def most_likely(logits: Floats) -> int:
    """Find the id of the largest logit, the lowest of equals; raises `ModelError` unless that logit is a finite number."""
    best = int(logits.argmax())  # NaN counts as the largest
    if not np.isfinite(logits[best]):
        found = "-inf everywhere" if np.isneginf(logits[best]) else f"{logits[best]} at id {best}"
        raise ModelError(f"the model's logits are no numbers to choose by ({found}); check it with: onnx-textgen verify DIR")
    return best


def apply_temperature(logits: Floats, temperature: float) -> Floats:
    """Divide logits by a temperature above 0; one so small that the division overflows leaves only the largest.

    >>> apply_temperature(np.float32([1, 2]), 0.5).tolist()
    [2.0, 4.0]
    """
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scaled: Floats = logits / np.float32(temperature)
    if np.isfinite(scaled.max()):
        return scaled
    return cut(np.zeros_like(logits), np.flatnonzero(logits == logits.max()))


def keep_top_k(logits: Floats, k: int) -> Floats:
    """Keep the k largest logits and all that equal the last of them; the rest becomes -inf.

    >>> keep_top_k(np.float32([3, 1, 2, 2]), 2).tolist()
    [3.0, -inf, 2.0, 2.0]
    """
    return cut(logits, top_k_ids(logits, k))


def keep_top_p(logits: Floats, p: float) -> Floats:
    """Keep the nucleus: cut the least likely whose probabilities add up to at most 1 - p; the most likely always stays.

    Of equal logits at the border the higher ids stay, as in transformers where its sort is stable (torch promises no order).
    Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration".

    >>> np.exp(keep_top_p(np.log(np.float32([0.125, 0.5, 0.25, 0.125])), 0.7)).tolist()
    [0.0, 0.5, 0.25, 0.0]
    """
    return cut(logits, top_p_ids(logits, p))


def keep_min_p(logits: Floats, p: float) -> Floats:
    """Cut what is less than `p` times as likely as the most likely.

    Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling".

    >>> np.exp(keep_min_p(np.log(np.float32([0.125, 0.5, 0.25, 0.125])), 0.4)).tolist()
    [0.0, 0.5, 0.25, 0.0]
    """
    return cut(logits, min_p_ids(logits, p))


def top_k_ids(logits: Floats, k: int) -> Ids:
    """List the ids, ascending, that `keep_top_k` keeps."""
    if k >= logits.size:
        return np.arange(logits.size)
    columns = logits.size // COLUMN
    if columns <= k:
        return np.flatnonzero(logits >= np.partition(logits, -k)[-k])
    # At least k logits reach the k-th largest column maximum, so the k largest all do: few are left to choose from.
    maxima = logits[: columns * COLUMN].reshape(COLUMN, columns).max(axis=0)
    ids = np.flatnonzero(logits >= np.partition(maxima, -k)[-k])
    few = logits[ids]
    kept: Ids = ids[few >= np.partition(few, -k)[-k]]
    return kept


def top_p_ids(logits: Floats, p: float) -> Ids:
    """List the ids, ascending, that `keep_top_p` keeps."""
    probabilities = softmax(logits)
    # Those below (1 - p) / n add up to less than 1 - p: cut without sorting, which in a large vocabulary is nearly all.
    order = np.flatnonzero(probabilities >= min((1 - p) / logits.size, float(probabilities.max())))
    cut_already = probabilities.sum(dtype=np.float64) - probabilities[order].sum(dtype=np.float64)
    order = order[np.argsort(logits[order])]
    # Summed in float64, compared in float32: so does torch, and exact ties at the border are decided by it.
    cumulative = cut_already + np.cumsum(probabilities[order], dtype=np.float64)
    first_kept = min(int(np.searchsorted(cumulative.astype(np.float32), np.float32(1 - p), side="right")), order.size - 1)
    ascending, border = logits[order], logits[order[first_kept]]
    ties = slice(np.searchsorted(ascending, border, side="left"), np.searchsorted(ascending, border, side="right"))
    order[ties].sort()  # a stable sort of everything would take ten times as long
    return np.sort(order[first_kept:])


def min_p_ids(logits: Floats, p: float) -> Ids:
    """List the ids, ascending, that `keep_min_p` keeps."""
    probabilities = softmax(logits)
    return np.flatnonzero(probabilities >= np.float32(p) * probabilities.max())


def cut(logits: Floats, kept_ids: Ids) -> Floats:
    """Copy `logits` with -inf everywhere but at `kept_ids`."""
    result = np.full_like(logits, -np.inf)
    result[kept_ids] = logits[kept_ids]
    return result


def softmax(logits: Floats, *, out: Floats | None = None) -> Floats:
    """Turn logits, at least one of them finite, into probabilities of the same shape [vocab] and dtype; `out` may be `logits`.

    >>> softmax(np.float32([0, 0, -np.inf])).tolist()
    [0.5, 0.5, 0.0]
    """
    with np.errstate(over="ignore"):  # the gap between two finite logits may itself be infinite
        weights: Floats = np.subtract(logits, logits.max(), out=out)
    np.exp(weights, out=weights)
    weights /= float(weights.sum(dtype=np.float64))
    return weights


def index_at(probabilities: Floats, position: float) -> int:
    """Find the index whose share of the interval [0, 1) holds `position`; one of probability 0 never does.

    >>> [index_at(np.float32([0.25, 0, 0.75]), position) for position in (0.0, 0.24, 0.25, 0.99)]
    [0, 0, 2, 2]
    """
    # Whole blocks first, then inside one: adding up 152,000 numbers one by one takes five times as long.
    starts = np.arange(0, probabilities.size, BLOCK)
    ends = np.cumsum(np.add.reduceat(probabilities, starts, dtype=np.float64))
    target = position * float(ends[-1])
    block = int(np.searchsorted(ends, target, side="right"))
    start = int(starts[block])
    inside = np.cumsum(probabilities[start : start + BLOCK], dtype=np.float64)
    rest = target - (float(ends[block - 1]) if block else 0.0)
    # The two sums may round differently; just below the end of the block is still in it.
    return start + int(np.searchsorted(inside, min(rest, float(np.nextafter(inside[-1], 0))), side="right"))


def uniform(seed: int, sample: int, step: int) -> float:
    """Give a number in [0, 1), the same anywhere for the same three: Philox 4x64 keyed by `seed`, counting `step` and `sample`.

    Each of the three is 0 to 2**63 - 1. Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
    """
    bits: int = np.random.Philox(key=seed, counter=[step, sample, 0, 0]).random_raw()
    return (bits >> 11) * 2.0**-53
