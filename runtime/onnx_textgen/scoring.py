"""Log-probabilities of a text under a model, without ever holding the logits of all its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .decoder import Decoder, Logits
from .errors import PromptError

MOST_LOGITS = 1 << 22
"""Most float32 logits held at a time (16 MiB)."""


def token_logprobs(decoder: Decoder, token_ids: Sequence[int]) -> tuple[float, ...]:
    """Natural-log probability of every token after the first, given those before it; `decoder` starts empty."""
    if len(token_ids) < 2:
        raise PromptError("a text of one token has nothing to score; give a longer one")
    ids = np.asarray(token_ids, dtype=np.int64)
    size = max(1, min(512, MOST_LOGITS // decoder.geometry.vocab_size))
    parts = []
    for start in range(0, len(ids) - 1, size):
        targets = ids[start + 1 : start + 1 + size]
        parts.append(target_logprobs(decoder.feed(ids[start : start + len(targets)].tolist(), every_position=True), targets))
    return tuple(np.concatenate(parts).tolist())


def target_logprobs(logits: Logits, targets: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """log softmax(logits)[target] per row; logits: [tokens, vocabulary], targets: [tokens]."""
    highest = logits.max(axis=1)
    totals = np.exp(logits - highest[:, None]).sum(axis=1, dtype=np.float64)
    chosen = logits[np.arange(len(targets)), targets]
    return np.asarray(chosen - highest - np.log(totals), dtype=np.float64)
