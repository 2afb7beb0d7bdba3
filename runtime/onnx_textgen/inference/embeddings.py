"""Texts as vectors: the hidden states of their tokens, pooled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ..cancellation import UNCANCELLED, CancelScope
from ..errors import ModelError
from ..package.retrieval import Pooling
from .decoder import Decoder

Vectors = npt.NDArray[np.float32]


def pooled(decoder: Decoder, token_ids: Sequence[int], pooling: Pooling, scope: CancelScope = UNCANCELLED) -> Vectors:
    """One vector [width] of a text. The output of `decoder` is hidden states; those of a long text are never held all at once.

    Raises `InterruptedRunError` if `scope` ends it.
    """
    total, weight = np.zeros(decoder.capabilities.width), 0.0
    for start, end in part_bounds(len(token_ids), decoder.part_size, decoder.capabilities.rope_switch_length):
        states = decoder.feed(token_ids[start:end], every_position=pooling != "last", scope=scope).astype(np.float64)
        if pooling == "last":
            total, weight = states[-1], 1.0
        else:
            weights = np.arange(start + 1.0, end + 1.0) if pooling == "weightedmean" else np.ones(end - start)
            total, weight = total + weights @ states, weight + weights.sum()
    if not np.isfinite(total).all():
        raise ModelError("the model's hidden states are not finite numbers; check it with: onnx-textgen verify DIR")
    return (total / weight).astype(np.float32)


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
