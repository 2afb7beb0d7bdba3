"""Texts as vectors: the hidden states of their tokens, pooled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..errors import ModelError
from .decoder import Decoder

Pooling = Literal["mean", "last"]
Vectors = npt.NDArray[np.float32]


def pooled(decoder: Decoder, token_ids: Sequence[int], pooling: Pooling) -> Vectors:
    """One vector [width] of a text. The output of `decoder` is hidden states; those of a long text are never held all at once."""
    total: npt.NDArray[np.float64] | None = None
    for start, end in part_bounds(len(token_ids), decoder.part_size, decoder.capabilities.rope_switch_length):
        states = decoder.feed(token_ids[start:end], every_position=pooling == "mean")
        if pooling == "last" or total is None:
            total = states[-1].astype(np.float64) if pooling == "last" else states.sum(axis=0, dtype=np.float64)
        else:
            total += states.sum(axis=0, dtype=np.float64)
    assert total is not None, "a text has tokens"
    if not np.isfinite(total).all():
        raise ModelError("the model's hidden states are not finite numbers; check it with: onnx-textgen verify DIR")
    return (total if pooling == "last" else total / len(token_ids)).astype(np.float32)


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
