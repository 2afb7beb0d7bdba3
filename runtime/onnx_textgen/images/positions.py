"""Positions of pictures along several axes, for decoders whose rotary embedding counts time, height and width (M-RoPE).

A picture begins at the position after the text before it; its rows share that one on the first axis, and count lines and columns on
the others. The text after it follows the largest of them, so it is nearer than its place in the prompt says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .image_rows import ImageRows, place_of

AXES = 3
"""Time, height and width."""
Offsets = npt.NDArray[np.int64]


def position_offsets(held: Sequence[int], new: Sequence[int], images: ImageRows) -> Offsets:
    """How far the positions of `new` ids after those `held` are from their places in the text: [3, new]."""
    shift = sum(images.gaps.get(each, 0) for each in held if each < 0)
    found = np.full((AXES, len(new)), shift, np.int64)
    if min(new, default=0) >= 0:
        return found
    for index, each in enumerate(new):
        if each >= 0:
            found[:, index] = shift
            continue
        image, place = images.image(each), place_of(each)
        line, column = divmod(place, image.lines[1])
        found[:, index] = shift - place + np.array([0, line, column])
        shift += images.gaps.get(each, 0)
    return found
