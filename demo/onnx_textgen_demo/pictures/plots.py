"""Line plots of measurements as SVG, in the page's colours, with a point for every row of the table.

Lengths double from row to row, so their axis is logarithmic; the other axis begins at zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 360, 200
LEFT, RIGHT, TOP, BOTTOM = 26, 334, 30, 158
"""The area of the points; the margins hold their numbers."""

Point = tuple[float, float]


def line_plot(points: Sequence[Point], *, title: str, across: str) -> str:
    """A plot of points (length, value), each with its value above and its length below; `across` labels the lengths."""
    places = [place(point, points) for point in points]
    lengths, values = zip(*((number(length), number(value)) for length, value in points), strict=True)
    spoken = ", ".join(f"{length}: {value}" for length, value in zip(lengths, values, strict=True))
    marks = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"/><text x="{x:.1f}" y="{y - 9:.1f}">{value}</text>'
        f'<text class="length" x="{x:.1f}" y="{BOTTOM + 17}">{length}</text>'
        for (x, y), length, value in zip(places, lengths, values, strict=True)
    )
    return (
        f'<figure class="plot"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}, by {escape(across)}: {spoken}">'
        f'<line x1="0" y1="{BOTTOM}" x2="{WIDTH}" y2="{BOTTOM}"/>'
        f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>{marks}'
        f'<text class="length" x="{WIDTH / 2:g}" y="{HEIGHT - 4}">{escape(across)}</text></svg></figure>'
    )


def place(point: Point, points: Sequence[Point]) -> Point:
    """The coordinates of a point in the drawing."""
    first, last = math.log(points[0][0]), math.log(points[-1][0])
    along = (math.log(point[0]) - first) / (last - first) if last > first else 0.5
    highest = max(value for _, value in points)
    up = point[1] / highest if highest > 0 else 0.0
    return LEFT + along * (RIGHT - LEFT), BOTTOM - up * (BOTTOM - TOP)


def number(value: float) -> str:
    """A number with at least three significant digits.

    >>> number(3463.7), number(35.87), number(0.1875)
    ('3,464', '35.9', '0.188')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
