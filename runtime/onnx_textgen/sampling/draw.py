"""From one row of logits to one token id: temperature, the cuts, then a draw.

Arrays in, arrays out: no state, no clock, no file. Temperature and cuts equal the logits warpers of transformers where it has them,
ties included. Randomness is counter-based: a draw is a function of its place (seed, sample, step, attempt) alone, so a text comes
out the same alone, in any row of a batch, streamed or not. What comes before temperature is `sampler`'s business.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from ..errors import ModelError
from ..options.generation_config import GenerationConfig
from .truncation import Floats, Ids, min_p_ids, softmax, top_k_ids, top_n_sigma_ids, top_p_ids, typical_p_ids, xtc_ids

BLOCK = 512
"""Probabilities per partial sum when looking for the one drawn."""
COIN = 1
"""The second random number of a step: whether XTC cuts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where in all that is ever drawn a random number belongs; each part is 0 to 2**63 - 1."""

    seed: int
    sample: int = 0
    """Which of several texts for one prompt."""
    step: int = 0
    """Tokens that the text has."""
    attempt: int = 0
    """How often this step was drawn before."""


@dataclasses.dataclass(frozen=True, slots=True)
class Survivors:
    """What may be drawn after a stage."""

    stage: str
    """The option that made the cut."""
    ids: Ids | None
    """Ascending; None: all of the vocabulary."""
    scores: Floats
    """Logits of these ids; -inf for those ruled out before."""


def narrow(logits: Floats, config: GenerationConfig, place: Place) -> Iterator[Survivors]:
    """The chain after each stage that is switched on, in order; `logits` [vocabulary] is left as it is.

    Greedy leaves the likeliest id at once. Each cut works on what the one before it left. Raises `ModelError` if the logits are
    not numbers.
    """
    best = most_likely(logits)
    if config.temperature == 0:
        yield Survivors("temperature", np.array([best]), logits[best : best + 1].copy())
        return
    left = Survivors("temperature", None, apply_temperature(logits, config.temperature))
    yield left
    cuts: tuple[tuple[str, bool, Callable[[Floats], Ids]], ...] = (
        ("top_k", config.top_k > 0, lambda scores: top_k_ids(scores, config.top_k)),
        ("top_p", config.top_p < 1, lambda scores: top_p_ids(scores, config.top_p)),
        ("min_p", config.min_p > 0, lambda scores: min_p_ids(scores, config.min_p)),
        ("typical_p", config.typical_p < 1, lambda scores: typical_p_ids(scores, config.typical_p)),
        ("top_n_sigma", config.top_n_sigma > 0, lambda scores: top_n_sigma_ids(scores, config.top_n_sigma)),
        ("xtc", throws_out(config, place), lambda scores: xtc_ids(scores, config.xtc_threshold)),
    )
    for name, is_on, cut in cuts:
        if is_on:
            kept = cut(left.scores)
            left = Survivors(name, kept if left.ids is None else left.ids[kept], left.scores[kept])
            yield left


def throws_out(config: GenerationConfig, place: Place) -> bool:
    """Whether XTC cuts at this place."""
    return config.xtc_probability > 0 and uniform(place, COIN) < config.xtc_probability


def survivors(logits: Floats, config: GenerationConfig, place: Place) -> Survivors:
    """What the whole chain leaves; its scores are a new array."""
    *_, last = narrow(logits, config, place)
    return last


def draw(left: Survivors, place: Place) -> int:
    """One id by its probability; `left.scores` is overwritten."""
    # By id, not by rank: noise in the logits may swap two ranks, which would move every boundary between them.
    index = index_at(softmax(left.scores, out=left.scores), uniform(place))
    return index if left.ids is None else int(left.ids[index])


def sample_token(logits: Floats, config: GenerationConfig, place: Place) -> int:
    """Pick an id: greedy at temperature 0, else the chain and a draw.

    >>> sample_token(np.float32([0.1, 2.0, 2.0]), GenerationConfig(temperature=0), Place(0))
    1
    """
    return most_likely(logits) if config.temperature == 0 else draw(survivors(logits, config, place), place)


def candidates(left: Survivors, *, limit: int | None = None) -> tuple[Ids, Floats]:
    """List what a draw chooses from, most likely first: ids and their probabilities, at most `limit` of them.

    >>> config = GenerationConfig(temperature=0.5, top_k=2)
    >>> ids, probabilities = candidates(survivors(np.log(np.float32([0.25, 0.5, 0.125])), config, Place(0)))
    >>> ids.tolist(), [f"{p:.3f}" for p in probabilities]
    ([1, 0], ['0.800', '0.200'])
    """
    probabilities = softmax(left.scores)
    kept = np.flatnonzero(probabilities) if limit is None else top_k_ids(probabilities, limit)
    kept = kept[np.argsort(-probabilities[kept], kind="stable")][:limit]
    return kept if left.ids is None else left.ids[kept], probabilities[kept]


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
    return np.where(logits == logits.max(), np.float32(0), np.float32(-np.inf))


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


def uniform(place: Place, number: int = 0) -> float:
    """Give a number in [0, 1), the same anywhere for the same place: Philox 4x64 keyed by the seed, counting the rest.

    `number` tells the random numbers of one place apart. Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
    """
    counter = [place.step, place.sample, place.attempt, number]
    bits: int = np.random.Philox(key=place.seed, counter=counter).random_raw()
    return (bits >> 11) * 2.0**-53
