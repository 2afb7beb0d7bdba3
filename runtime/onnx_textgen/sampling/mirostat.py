"""Mirostat 2: cut what surprises more than a moving limit, so that the surprise of the text stays near a wanted one.

Basu et al. 2021, "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", algorithm 2; as in llama.cpp the
surprise that the limit follows is that among the tokens that were left.
"""

from __future__ import annotations

import numpy as np

from .truncation import Floats, Ids, softmax


class Mirostat:
    """The moving limit of one text, in bits."""

    def __init__(self, *, tau: float, eta: float) -> None:
        self.tau, self.eta = tau, eta
        self.limit = 2 * tau

    def kept(self, logits: Floats) -> Ids:
        """The places, ascending, of tokens that surprise no more than the limit; the likeliest is always one of them."""
        surprise = surprise_of(logits)
        return np.flatnonzero(surprise <= max(np.float32(self.limit), surprise.min()))

    def follow(self, surprise: float) -> None:
        """Move the limit after a token of so many bits was chosen."""
        self.limit -= self.eta * (surprise - self.tau)


def surprise_of(logits: Floats) -> Floats:
    """Bits per token: minus the binary logarithm of its probability."""
    with np.errstate(divide="ignore"):
        bits: Floats = -np.log2(softmax(logits))
    return bits
