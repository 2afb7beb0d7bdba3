"""What a text's own past does to the logits, rule by rule: plain arrays in, changed in place.

`scores` are the logits [vocabulary] of the next token, `history` the ids of prompt and text so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .history import HistoryIds
from .truncation import Floats, Ids

LARGEST_EXPONENT = 88.0
"""e to this power is about the largest float32."""


def add_biases(scores: Floats, ids: Ids, biases: Floats) -> None:
    """Add a number to the logits of some ids."""
    scores[ids] += biases


def rule_out(scores: Floats, ids: Sequence[int] | Ids) -> None:
    """Make ids impossible."""
    if len(ids):
        scores[np.asarray(ids, dtype=np.intp)] = -np.inf


def penalise_repetition(scores: Floats, ids: Ids, penalty: float) -> None:
    """Divide positive logits of `ids`, each listed once, by `penalty`, and multiply negative ones with it.

    Keskar et al. 2019, "CTRL", with the change for negative logits that transformers made.
    """
    chosen = scores[ids]
    scores[ids] = np.where(chosen < 0, chosen * np.float32(penalty), chosen / np.float32(penalty))


def penalise_presence_and_frequency(scores: Floats, ids: Ids, counts: Floats, *, presence: float, frequency: float) -> None:
    """Subtract `presence` once and `frequency` times the count from the logit of each id (OpenAI's formula)."""
    scores[ids] -= np.float32(presence) + np.float32(frequency) * counts


def repeats_that_end(history: HistoryIds, ids: Sequence[Sequence[int]]) -> list[int]:
    """The last ids of those sequences whose other ids end the history: choosing one would complete a sequence.

    >>> repeats_that_end(np.array([5, 7, 8]), [[7, 8, 9], [3], [5, 8, 1]])
    [9, 3]
    """
    return [
        each[-1]
        for each in ids
        if len(each) - 1 <= history.size and history[history.size - len(each) + 1 :].tolist() == list(each[:-1])
    ]


def ids_of_repeats(history: HistoryIds, size: int) -> Ids:
    """Ids that would complete a run of `size` ids which the history already has.

    >>> ids_of_repeats(np.array([1, 2, 3, 1, 2]), 3).tolist()
    [3]
    """
    if history.size < size:
        return np.array([], dtype=np.intp)
    ends = places_of_suffix(history, size - 1)
    return np.unique(history[ends + 1])


def places_of_suffix(history: HistoryIds, length: int) -> Ids:
    """Where, before its end, the last `length` ids of the history come too: the places of their last ids."""
    places = np.arange(length - 1, history.size - 1)
    for back in range(length):
        places = places[history[places - back] == history[history.size - 1 - back]]
    return places


def penalise_dry(scores: Floats, history: HistoryIds, *, multiplier: float, base: float, allowed_length: int, longest: int) -> None:
    """Penalise ids that would lengthen a repeat ("Don't Repeat Yourself", p-e-w 2024; the rule is llama.cpp's).

    A repeat is the longest end of the history, of at most `longest` ids, that came before; the id that followed it then loses
    multiplier * base ** (length - allowed_length), where the length is at least `allowed_length`.
    """
    for token_id, length in lengths_of_repeats(history, allowed_length, longest).items():
        exponent = min(length - allowed_length, LARGEST_EXPONENT / np.log(base) if base > 1 else np.inf)
        scores[token_id] -= np.float32(multiplier * base**exponent)


def lengths_of_repeats(history: HistoryIds, shortest: int, longest: int) -> Mapping[int, int]:
    """For each id that followed an earlier copy of the history's end: the length of the longest such copy.

    >>> lengths_of_repeats(np.array([1, 2, 3, 9, 2, 4, 1, 2]), 1, 10)
    {4: 1, 3: 2}
    """
    found: dict[int, int] = {}
    if longest < shortest or history.size < 2:
        return found
    places, length = np.arange(history.size - 1), 0
    while places.size:
        # One id further back; a place at the beginning of the history has nothing there.
        goes_on = (places >= length) & (history[places - length] == history[history.size - 1 - length])
        if length == longest:
            goes_on[:] = False
        if length >= shortest:
            found |= dict.fromkeys(history[places[~goes_on] + 1].tolist(), length)
        places, length = places[goes_on], length + 1
    return found
