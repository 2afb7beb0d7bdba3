"""Mirostat 2: remove tokens whose surprise exceeds a moving limit, so that the surprise of the text stays near a target.

Basu et al. 2021, "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", algorithm 2. As in llama.cpp, the
limit is updated with the surprise of the chosen token among the tokens that stayed.
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
        """Indices, ascending, of the tokens whose surprise is at most the limit; the most likely one is always kept."""
        surprise = surprise_of(logits)
        return np.flatnonzero(surprise <= max(np.float32(self.limit), surprise.min()))

    def update(self, surprise: float) -> None:
        """Move the limit after a token with this surprise, in bits, was chosen."""
        self.limit -= self.eta * (surprise - self.tau)


def surprise_of(logits: Floats) -> Floats:
    """Surprise of each token in bits: minus the binary logarithm of its probability."""
    with np.errstate(divide="ignore"):
        bits: Floats = -np.log2(softmax(logits))
    return bits
