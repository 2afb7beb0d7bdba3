"""Texts as vectors: the hidden states of their tokens, pooled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ..cancellation import UNCANCELLED, CancelScope
from ..errors import ModelError
from ..inference.decoder import Decoder
from ..package.retrieval import Pooling

Vectors = npt.NDArray[np.float32]
States = npt.NDArray[np.float64]


def pooled(decoder: Decoder, token_ids: Sequence[int], pooling: Pooling, scope: CancelScope = UNCANCELLED) -> Vectors:
    """One vector [width] of a text. The output of `decoder` is hidden states; those of a long text are never held all at once.

    Raises `InterruptedRunError` if `scope` ends it.
    """
    decoder.rewind(0)
    total: States | None = None
    for start, end in part_bounds(len(token_ids), decoder.part_size, decoder.capabilities.rope_switch_length):
        states = decoder.feed(token_ids[start:end], every_position=pooling != "last", scope=scope)
        total = added(states, start, pooling, total)
    assert total is not None, "a text has a token"
    return as_vector(total, len(token_ids), pooling)


def pooled_together(decoder: Decoder, texts: Sequence[Sequence[int]], pooling: Pooling, scope: CancelScope) -> list[Vectors]:
    """The vectors of texts that `Decoder.can_prefill_together` accepts, in one run; they equal `pooled`'s to the last bit."""
    for row in range(len(texts)):
        decoder.rewind(0, row=row)
    lengths = [len(text) for text in texts]
    if pooling == "last":
        last = decoder.prefill_rows(texts, 0, scope=scope)
        return [as_vector(state.astype(np.float64), length, pooling) for state, length in zip(last, lengths, strict=True)]
    every = decoder.feed_rows(texts, 0, np.arange(max(lengths)), scope=scope)
    return [pooled_states(states[:length], pooling) for states, length in zip(every, lengths, strict=True)]


def pooled_states(states: npt.NDArray[np.float32], pooling: Pooling) -> Vectors:
    """One vector [width] of the states [tokens, width] of a text."""
    return as_vector(added(states, 0, pooling), len(states), pooling)


def added(states: npt.NDArray[np.float32], start: int, pooling: Pooling, total: States | None = None) -> States:
    """`total`, of the tokens before, with the states [tokens, width] of a part that begins at `start`."""
    exact = states.astype(np.float64)
    if pooling == "last":
        return np.asarray(exact[-1])
    if pooling == "cls":
        return np.asarray(exact[0]) if total is None else total
    if pooling == "max":
        return np.asarray(exact.max(axis=0) if total is None else np.maximum(total, exact.max(axis=0)))
    weights = np.arange(start + 1.0, start + len(exact) + 1) if pooling == "weightedmean" else np.ones(len(exact))
    return np.asarray(weights @ exact if total is None else total + weights @ exact)


def as_vector(total: States, length: int, pooling: Pooling) -> Vectors:
    """The sum over a text of `length` tokens as a vector; raises `ModelError` if it is not finite."""
    if not np.isfinite(total).all():
        raise ModelError("the model's hidden states are not finite numbers; check it with: onnx-textgen verify DIR")
    weight = {"mean": length, "weightedmean": length * (length + 1) / 2}.get(pooling, 1)
    return (total / weight).astype(np.float32)


def groups(lengths: Sequence[int], fits: Callable[[Sequence[int]], bool]) -> Iterator[list[int]]:
    """The places of texts of these lengths in groups, shortest first, as large as `fits` allows; a text alone always fits.

    >>> list(groups([9, 2, 3, 8], lambda lengths: len(lengths) * max(lengths) <= 16))
    [[1, 2], [3], [0]]
    """
    group = list[int]()
    for place in sorted(range(len(lengths)), key=lambda each: lengths[each]):
        if group and not fits([lengths[each] for each in (*group, place)]):
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def part_bounds(length: int, size: int, rope_switch_length: int | None) -> Iterator[tuple[int, int]]:
    """Begin and end of the parts of a text, of `size` tokens each.

    If the text is longer than the rope switch, the first part is too, as the switch would change the results of earlier parts.

    >>> list(part_bounds(10, 3, None)), list(part_bounds(10, 3, 7)), list(part_bounds(5, 3, 7))
    ([(0, 3), (3, 6), (6, 9), (9, 10)], [(0, 8), (8, 10)], [(0, 3), (3, 5)])
    """
    start = 0
    while start < length:
        first = rope_switch_length is not None and start == 0 and length > rope_switch_length
        end = min(max(size, (rope_switch_length or 0) + 1) if first else start + size, length)
        yield start, end
        start = end
