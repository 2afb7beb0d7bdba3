"""Penalties: how the prompt and the text so far change the logits. Plain functions that change an array in place.

`scores` are the logits [vocabulary] of the next token, `history` the ids of the prompt and of the text so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .history import HistoryIds
from .truncation import Floats, Ids

LARGEST_EXPONENT = 88.0
"""e to this power is about the largest float32."""


def add_biases(scores: Floats, ids: Ids, biases: Floats) -> None:
    """Add a bias to the logit of each id."""
    scores[ids] += biases


def ban(scores: Floats, ids: Sequence[int] | Ids) -> None:
    """Set the logits of ids to -inf."""
    if len(ids):
        scores[np.asarray(ids, dtype=np.intp)] = -np.inf


def penalise_repetition(scores: Floats, ids: Ids, penalty: float) -> None:
    """Divide positive logits of `ids`, each listed once, by `penalty`, and multiply negative ones by it.

    Keskar et al. 2019, "CTRL", with transformers' change for negative logits.
    """
    chosen = scores[ids]
    scores[ids] = np.where(chosen < 0, chosen * np.float32(penalty), chosen / np.float32(penalty))


def penalise_presence_and_frequency(scores: Floats, ids: Ids, counts: Floats, *, presence: float, frequency: float) -> None:
    """Subtract `presence` once and `frequency` times the count from the logit of each id (OpenAI's formula)."""
    scores[ids] -= np.float32(presence) + np.float32(frequency) * counts


def ids_completing_sequences(history: HistoryIds, ids: Sequence[Sequence[int]]) -> list[int]:
    """The last id of each sequence whose other ids end the history: choosing it would complete the sequence.

    >>> ids_completing_sequences(np.array([5, 7, 8]), [[7, 8, 9], [3], [5, 8, 1]])
    [9, 3]
    """
    return [
        each[-1]
        for each in ids
        if len(each) - 1 <= history.size and history[history.size - len(each) + 1 :].tolist() == list(each[:-1])
    ]


def ids_completing_ngrams(history: HistoryIds, size: int) -> Ids:
    """Ids that would complete an n-gram of `size` ids that the history already contains.

    >>> ids_completing_ngrams(np.array([1, 2, 3, 1, 2]), 3).tolist()
    [3]
    """
    if history.size < size:
        return np.array([], dtype=np.intp)
    ends = suffix_occurrences(history, size - 1)
    return np.unique(history[ends + 1])


def suffix_occurrences(history: HistoryIds, length: int) -> Ids:
    """Earlier occurrences of the last `length` ids of the history: the index of the last id of each."""
    places = np.arange(length - 1, history.size - 1)
    for back in range(length):
        places = places[history[places - back] == history[history.size - 1 - back]]
    return places


def penalise_dry(scores: Floats, history: HistoryIds, *, multiplier: float, base: float, allowed_length: int, longest: int) -> None:
    """Penalise ids that would lengthen a repeat ("Don't Repeat Yourself", p-e-w 2024; the rule is llama.cpp's).

    A repeat is the longest suffix of the history, of at most `longest` ids, that occurs earlier too. If its length is at least
    `allowed_length`, the logit of the id that followed it then is reduced by multiplier * base ** (length - allowed_length).
    """
    for token_id, length in repeat_lengths(history, allowed_length, longest).items():
        exponent = min(length - allowed_length, LARGEST_EXPONENT / np.log(base) if base > 1 else np.inf)
        scores[token_id] -= np.float32(multiplier * base**exponent)


def repeat_lengths(history: HistoryIds, shortest: int, longest: int) -> Mapping[int, int]:
    """For each id that followed an earlier copy of a suffix of the history: the length of the longest such copy.

    >>> repeat_lengths(np.array([1, 2, 3, 9, 2, 4, 1, 2]), 1, 10)
    {4: 1, 3: 2}
    """
    found: dict[int, int] = {}
    if longest < shortest or history.size < 2:
        return found
    places, length = np.arange(history.size - 1), 0
    while places.size:
        # Compare one id further back; a copy that starts at the beginning of the history ends here.
        matches = (places >= length) & (history[places - length] == history[history.size - 1 - length])
        if length == longest:
            matches[:] = False
        if length >= shortest:
            found |= dict.fromkeys(history[places[~matches] + 1].tolist(), length)
        places, length = places[matches], length + 1
    return found
