"""Texts as vectors: the hidden states of their tokens, pooled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from .decoder import Decoder

Pooling = Literal["mean", "last"]
Vectors = npt.NDArray[np.float32]


def pooled(decoder: Decoder, token_ids: Sequence[int], pooling: Pooling) -> Vectors:
    """One vector [width] of a text; `decoder` gives hidden states. A long text's are never held together."""
    total: npt.NDArray[np.float64] | None = None
    for start in range(0, len(token_ids), decoder.chunk):
        states = decoder.feed(token_ids[start : start + decoder.chunk], every_position=pooling == "mean")
        if pooling == "last" or total is None:
            total = states[-1].astype(np.float64) if pooling == "last" else states.sum(axis=0, dtype=np.float64)
        else:
            total += states.sum(axis=0, dtype=np.float64)
    assert total is not None, "a text has tokens"
    return (total if pooling == "last" else total / len(token_ids)).astype(np.float32)
