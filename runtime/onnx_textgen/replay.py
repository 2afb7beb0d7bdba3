"""Replays a package's golden runs, to see that it computes here what it computed where it was made.

The golden ids are fed as they are and every logits row is looked at, so one close call does not spoil all that follows it. An
8-bit or 4-bit package may round differently on another processor; a golden id that is no longer first then counts as the same
if it is behind by no more than the logits error that its certificate allows.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from .artifact import GoldenRun, Manifest
from .decoder import CHUNK, Decoder


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
    ids = [*run.prompt_ids, *run.new_ids[:-1]]
    parts = [decoder.feed(ids[start : start + CHUNK], every_position=True) for start in range(0, len(ids), CHUNK)]
    logits = np.concatenate(parts)[len(run.prompt_ids) - 1 :]
    wanted = logits[np.arange(len(run.new_ids)), list(run.new_ids)]
    gaps = (logits.max(axis=1) - wanted) / np.abs(logits).max(axis=1)
    allowed = float(manifest.certificate.get("tolerance", {}).get("logits_error", 0.0))
    wrong = np.flatnonzero(~(gaps <= allowed))  # a NaN is wrong too
    return Replay(
        prompt_tokens=len(run.prompt_ids),
        new_tokens=len(run.new_ids),
        same=int((logits.argmax(axis=1) == np.array(run.new_ids)).sum()),
        largest_gap=float(gaps.max()),
        first_difference=int(wrong[0]) if len(wrong) else None,
        allowed_gap=allowed,
    )
