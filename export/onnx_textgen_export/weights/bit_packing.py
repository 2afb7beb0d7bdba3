"""Unpacks integers of few bits from words of 32, as GPTQ, AWQ and compressed-tensors store them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

WORD = 32


def unpack(words: npt.NDArray[np.int32], bits: int, count: int) -> npt.NDArray[np.uint8]:
    """The first `count` integers of each row of words [rows, words], which are one stream of bits, lowest first.

    >>> unpack(np.array([[0x321]], np.int32), 4, 3)
    array([[1, 2, 3]], dtype=uint8)
    """
    start = np.arange(count) * bits
    place, offset = start // WORD, (start % WORD).astype(np.uint64)
    plain: npt.NDArray[Any] = np.ascontiguousarray(words).view(np.uint32).astype(np.uint64)
    found = plain[:, place] >> offset
    if WORD % bits:  # some integers begin in one word and end in the next
        following = np.pad(plain, ((0, 0), (0, 1)))[:, place + 1]
        found |= following << (WORD - offset)
    return (found & np.uint64((1 << bits) - 1)).astype(np.uint8)
