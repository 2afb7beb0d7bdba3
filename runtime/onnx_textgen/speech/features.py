"""Features of sound by which an encoder is tried: made from ids, so that golden runs and proofs name them as they name texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

INPUT_FEATURES = "input_features"
"""The input [batch, mels, frames] of an encoder that reads sound."""
LEVELS = 97
Features = npt.NDArray[np.float32]


def features_of(ids: Sequence[int], mels: int, frames: int) -> Features:
    """Features [mels, frames] between -1 and 1, a stretch of time for each id; of whole numbers, so that they are equal everywhere.

    >>> features_of([3, 5], 2, 4).round(2).tolist()
    [[-0.75, -0.65, -0.42, -0.32], [-0.67, -0.57, -0.3, -0.2]]
    """
    times = np.arange(frames)
    each = np.asarray(ids, np.int64)[times * len(ids) // frames]
    numbers = (each + 1) * (np.arange(mels)[:, None] + 3) + 5 * times
    return ((numbers % LEVELS) / (LEVELS / 2) - 1).astype(np.float32)
