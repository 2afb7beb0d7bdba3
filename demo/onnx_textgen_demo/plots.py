"""Measured numbers as line plots, in SVG that is drawn here: every row of the table has its point, and takes the page's colours.

Lengths double from row to row, so they stand on a logarithmic axis; the other axis begins at zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 360, 200
LEFT, RIGHT, TOP, BOTTOM = 26, 334, 30, 158
"""Where in that the points lie; the rest is for their numbers."""

Point = tuple[float, float]


def line_plot(points: Sequence[Point], *, title: str, across: str) -> str:
    """Points (length, value) in their order, each with its number above and its length below; `across` names the lengths."""
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
    """Where a point lies in the drawing."""
    first, last = math.log(points[0][0]), math.log(points[-1][0])
    along = (math.log(point[0]) - first) / (last - first) if last > first else 0.5
    highest = max(value for _, value in points)
    up = point[1] / highest if highest > 0 else 0.0
    return LEFT + along * (RIGHT - LEFT), BOTTOM - up * (BOTTOM - TOP)


def number(value: float) -> str:
    """A number of three digits or more.

    >>> number(3463.7), number(35.87), number(0.1875)
    ('3,464', '35.9', '0.188')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
