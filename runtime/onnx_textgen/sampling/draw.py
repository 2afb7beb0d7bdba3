"""From one row of logits to one token id: temperature, truncation, then a draw.

Arrays in, arrays out: no state, no clock, no file. Where transformers has the same logits warper, the results are equal, ties
included. Randomness is counter-based: a draw depends only on its place (seed, sample, step, attempt), so a text is the same alone,
in any row of a batch, streamed or not. `sampler` applies the stages before temperature.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from ..errors import ModelError
from ..options.generation_config import GenerationConfig
from .truncation import Floats, Ids, min_p_ids, softmax, top_k_ids, top_p_ids

BLOCK = 512
"""Probabilities per partial sum in the search for the drawn index."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The position of a random number among all that are ever drawn; each part is 0 to 2**63 - 1."""

    seed: int
    sample: int = 0
    """Index of the text, where one prompt has several texts."""
    step: int = 0
    """Tokens in the text so far."""
    attempt: int = 0
    """Number of earlier draws for this step."""


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """The ids that may be drawn after a stage, with their logits."""

    stage: str
    """The option that this stage applied."""
    ids: Ids | None
    """Ascending; None: the whole vocabulary."""
    scores: Floats
    """Logits of these ids; -inf for ids that an earlier stage banned."""


def truncate(logits: Floats, config: GenerationConfig) -> Iterator[Candidates]:
    """Apply temperature and each truncation that is switched on, in order, and yield the candidates after each stage.

    `logits` [vocabulary] is not changed. At temperature 0 the only stage leaves the most likely id. Each truncation works on the
    candidates of the stage before. Raises `ModelError` if the logits are not numbers.
    """
    best = most_likely(logits)
    if config.temperature == 0:
        yield Candidates("temperature", np.array([best]), logits[best : best + 1].copy())
        return
    left = Candidates("temperature", None, apply_temperature(logits, config.temperature))
    yield left
    samplers: tuple[tuple[str, bool, Callable[[Floats], Ids]], ...] = (
        ("top_k", config.top_k > 0, lambda scores: top_k_ids(scores, config.top_k)),
        ("top_p", config.top_p < 1, lambda scores: top_p_ids(scores, config.top_p)),
        ("min_p", config.min_p > 0, lambda scores: min_p_ids(scores, config.min_p)),
    )
    for name, is_on, keep in samplers:
        if is_on:
            kept = keep(left.scores)
            left = Candidates(name, kept if left.ids is None else left.ids[kept], left.scores[kept])
            yield left


def final_candidates(logits: Floats, config: GenerationConfig) -> Candidates:
    """The candidates after the last stage; their scores are a new array."""
    *_, last = truncate(logits, config)
    return last


def draw(left: Candidates, place: Place) -> int:
    """Draw one id according to its probability; overwrites `left.scores`."""
    # In the order of ids, not of probabilities: noise in the logits may swap two ranks, which would move the boundaries.
    index = index_at(softmax(left.scores, out=left.scores), uniform(place))
    return index if left.ids is None else int(left.ids[index])


def sample_token(logits: Floats, config: GenerationConfig, place: Place) -> int:
    """Choose an id: the most likely at temperature 0, else truncation and a draw.

    >>> sample_token(np.float32([0.1, 2.0, 2.0]), GenerationConfig(temperature=0), Place(0))
    1
    """
    return most_likely(logits) if config.temperature == 0 else draw(final_candidates(logits, config), place)


def candidates(left: Candidates, *, limit: int | None = None) -> tuple[Ids, Floats]:
    """List the ids that a draw chooses from and their probabilities, most likely first, at most `limit` of them.

    >>> config = GenerationConfig(temperature=0.5, top_k=2)
    >>> ids, probabilities = candidates(final_candidates(np.log(np.float32([0.25, 0.5, 0.125])), config))
    >>> ids.tolist(), [f"{p:.3f}" for p in probabilities]
    ([1, 0], ['0.800', '0.200'])
    """
    probabilities = softmax(left.scores)
    kept = np.flatnonzero(probabilities) if limit is None else top_k_ids(probabilities, limit)
    kept = kept[np.argsort(-probabilities[kept], kind="stable")][:limit]
    return kept if left.ids is None else left.ids[kept], probabilities[kept]


def most_likely(logits: Floats) -> int:
    """Find the id of the largest logit, the lowest id of equal ones; raises `ModelError` unless that logit is finite."""
    best = int(logits.argmax())  # NaN counts as the largest
    if not np.isfinite(logits[best]):
        found = "-inf everywhere" if np.isneginf(logits[best]) else f"{logits[best]} at id {best}"
        raise ModelError(f"the model's logits are no numbers to choose by ({found}); check it with: onnx-textgen verify DIR")
    return best


def apply_temperature(logits: Floats, temperature: float) -> Floats:
    """Divide logits by a temperature above 0; if the division overflows, only the largest logit stays.

    >>> apply_temperature(np.float32([1, 2]), 0.5).tolist()
    [2.0, 4.0]
    """
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scaled: Floats = logits / np.float32(temperature)
    if np.isfinite(scaled.max()):
        return scaled
    return np.where(logits == logits.max(), np.float32(0), np.float32(-np.inf))


def index_at(probabilities: Floats, position: float) -> int:
    """Find the index whose share of the interval [0, 1) contains `position`; an index of probability 0 has no share.

    >>> [index_at(np.float32([0.25, 0, 0.75]), position) for position in (0.0, 0.24, 0.25, 0.99)]
    [0, 0, 2, 2]
    """
    # First the block, then the index in it: a sum over 152,000 numbers one by one takes five times as long.
    starts = np.arange(0, probabilities.size, BLOCK)
    ends = np.cumsum(np.add.reduceat(probabilities, starts, dtype=np.float64))
    target = position * float(ends[-1])
    block = int(np.searchsorted(ends, target, side="right"))
    start = int(starts[block])
    inside = np.cumsum(probabilities[start : start + BLOCK], dtype=np.float64)
    rest = target - (float(ends[block - 1]) if block else 0.0)
    # The two sums may round differently, so the target is kept just below the end of the block.
    return start + int(np.searchsorted(inside, min(rest, float(np.nextafter(inside[-1], 0))), side="right"))


def uniform(place: Place) -> float:
    """Return a number in [0, 1) that depends only on the place: Philox 4x64, with the seed as key and the rest as counter.

    Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
    """
    counter = [place.step, place.sample, place.attempt, 0]
    bits: int = np.random.Philox(key=place.seed, counter=counter).random_raw()
    return (bits >> 11) * 2.0**-53
