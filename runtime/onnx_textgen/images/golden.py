"""Reads a golden picture again, and compares its rows with those of the export."""

from __future__ import annotations

import numpy as np

from ..package.manifest import GoldenPicture
from .image_reader import ImageReader
from .image_rows import Rows
from .pictures import Pixels

SIZES = ((64, 48), (90, 201))
"""Heights and widths of the golden pictures of an export."""


def golden_picture(height: int, width: int) -> Pixels:
    """A picture with slow and fast changes of color, of whole numbers only, so that it is the same everywhere."""
    down, across = np.mgrid[0:height, 0:width]
    slow = down * 255 // max(height - 1, 1), across * 255 // max(width - 1, 1)
    fast = (down * 7) ^ (across * 11)
    return np.stack([*slow, fast % 256], axis=-1).astype(np.uint8)


def numbers_of(rows: Rows) -> tuple[float, ...]:
    """The number of each row that a manifest keeps: the one whose place is that of the row, so that each column is seen."""
    count, width = rows.shape
    return tuple(float(rows[row, row % width]) for row in range(count))


def reread(reader: ImageReader, golden: GoldenPicture) -> float:
    """The largest difference of a number from the golden one, relative to the largest of these."""
    found = np.array(numbers_of(reader.read_pixels(golden_picture(golden.height, golden.width)).rows()))
    wanted = np.array(golden.numbers)
    if found.shape != wanted.shape:
        return float("inf")
    return float(np.abs(found - wanted).max() / max(1e-9, float(np.abs(wanted).max())))
