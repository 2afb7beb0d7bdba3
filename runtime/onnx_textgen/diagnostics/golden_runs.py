"""Replays a package's golden runs, to see that it computes here what it computed where it was made.

The golden ids are fed as they are, in pieces and one by one over the cache, and every logits row is looked at, so one close call
does not spoil all that follows it. A package may round differently on another processor, an 8-bit one visibly; a golden id that
is no longer first then counts as the same if it is behind by little, measured by the error that its certificate states.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ..inference.decoder import Decoder
from ..package.manifest import GoldenRun, Manifest

MARGIN = 3
"""Times the logits error measured when the package was made."""
SMALLEST_GAP = 1e-5
"""Relative to the largest logit: what float32 sums in another order may differ by."""


@dataclasses.dataclass(frozen=True, slots=True)
class Replay:
    """What came of one golden run."""

    prompt_tokens: int
    new_tokens: int
    same: int
    """New tokens that are again the likeliest."""
    largest_gap: float
    """How far the farthest golden id is behind the likeliest, relative to the largest logit; 0 where all are the same."""
    first_difference: int | None
    """Index of the first new token behind by more than `allowed_gap`."""
    allowed_gap: float

    @property
    def is_right(self) -> bool:
        """Whether the package computes what it should."""
        return self.first_difference is None


def replay(decoder: Decoder, manifest: Manifest, run: GoldenRun) -> Replay:
    """Feed a golden run to an empty decoder and compare; raises `ModelError` if the model fails."""
    cut = len(run.prompt_ids) // 3
    pieces = [piece for piece in (run.prompt_ids[:cut], run.prompt_ids[cut:]) if piece] + [(token,) for token in run.new_ids[:-1]]
    fed = [decoder.feed(piece) for piece in pieces]
    logits = np.concatenate(fed[-len(run.new_ids) :])
    wanted = logits[np.arange(len(run.new_ids)), list(run.new_ids)]
    gaps = (logits.max(axis=1) - wanted) / np.abs(logits).max(axis=1)
    allowed = max(MARGIN * float(manifest.certificate.get("largest_logits_error", 0.0)), SMALLEST_GAP)
    wrong = np.flatnonzero(~(gaps <= allowed))  # a NaN is wrong too
    return Replay(
        prompt_tokens=len(run.prompt_ids),
        new_tokens=len(run.new_ids),
        same=int((logits.argmax(axis=1) == np.array(run.new_ids)).sum()),
        largest_gap=float(gaps.max()),
        first_difference=int(wrong[0]) if len(wrong) else None,
        allowed_gap=allowed,
    )
