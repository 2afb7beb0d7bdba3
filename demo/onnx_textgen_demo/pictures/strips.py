"""Rows of numbers as strips of coloured cells: blue above zero, orange below, stronger for larger values.

The strips are PNG pictures of a few hundred bytes, transparent at zero, so that they suit light and dark pages.
"""

from __future__ import annotations

import base64
import io
import math

import numpy as np
import numpy.typing as npt
from PIL import Image  # which Gradio brings

Numbers = npt.NDArray[np.float32]

ABOVE, BELOW = (37, 99, 235), (234, 88, 12)
"""Colours that every kind of colour vision can distinguish."""
CELLS_WIDE = 13
"""Ratio of a strip's width to its height."""
MOST = 0.99
"""The share of numbers within the scale; the others are drawn with the colour of its end."""


def scale_of(rows: Numbers) -> float:
    """The end of a common scale for rows."""
    return float(np.quantile(np.abs(rows), MOST)) or 1.0


def strip(numbers: Numbers, scale: float) -> str:
    """A row of numbers as an `img`, laid out in a few lines, each from left to right."""
    columns = math.ceil(numbers.size / lines_for(numbers.size))
    cells = np.zeros((lines_for(numbers.size), columns), np.float32)
    cells.flat[: numbers.size] = numbers
    named = f"{numbers.size:,} numbers from {numbers.min():.3f} to {numbers.max():.3f}"
    data = base64.b64encode(png(coloured(cells, scale))).decode()
    return f'<img class="strip" src="data:image/png;base64,{data}" alt="{named}" title="{named}">'


def lines_for(size: int) -> int:
    """The number of lines of a row, so that cells are about square.

    >>> lines_for(32), lines_for(320), lines_for(4096)
    (2, 5, 18)
    """
    return max(1, round(math.sqrt(size / CELLS_WIDE)))


def coloured(cells: Numbers, scale: float) -> npt.NDArray[np.uint8]:
    """Red, green, blue and opacity [lines, columns, 4] of numbers [lines, columns]."""
    colours = np.where(cells[..., None] >= 0, ABOVE, BELOW)
    opacity = np.clip(np.abs(cells.astype(np.float64)) / scale, 0, 1)[..., None] * 255
    return np.concatenate([colours, opacity], axis=-1).round().astype(np.uint8)


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A picture [lines, columns, 4] as a file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def scale_legend(scale: float, name: str = "") -> str:
    """The legend of the colours; `name`: of what, if a picture has two."""
    label = f"<b>{name}</b>" if name else ""
    return f'<p class="strip-scale">{label}<span>−{scale:.2g} or less</span><i></i><span>{scale:.2g} or more</span></p>'  # noqa: RUF001 - a minus
