"""Bytes against what is lost: a point for each form, a colour for each engine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter
from matplotlib.transforms import Bbox

matplotlib.use("Agg")
COLOURS = {"onnx-textgen": "#d62728", "onnxruntime-genai": "#1f77b4", "llama.cpp": "#2ca02c", "OpenVINO": "#9467bd"}
SHORT = {
    "importance matrix": "imatrix",
    " and scale estimation": ", scales",
    " and GPTQ": ", GPTQ",
    "output layer at": "output",
    "sensitive layers at": "sensitive",
}
"""Words of the table that are shorter in the picture."""
CHANGES = (-0.1, -0.05, -0.02, -0.01, -0.005, 0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
LINEAR_BELOW = 0.01
"""Changes of perplexity up to 1 % are drawn to scale, on both sides of none; larger ones by their logarithm."""
MEGABYTES = (1, 2, 5, 10, 20, 30, 40, 50, 60, 80, 100, 120, 150, 200, 250, 300, 400, 500, 700, 1000, 1500, 2000, 3000, 5000)

Record = dict[str, Any]


def short(form: str) -> str:
    """A form's name in the picture."""
    for words, fewer in SHORT.items():
        form = form.replace(words, fewer)
    return form


def offsets() -> Iterator[tuple[float, float, str, str]]:
    """Places of a label around its point, the nearest first: x and y in points, and which side of the text is there."""
    for distance, turn in itertools.product(range(8, 120, 6), range(16)):
        x, y = math.cos(turn * math.pi / 8), math.sin(turn * math.pi / 8)
        yield distance * x, distance * y, "left" if x > -0.01 else "right", "bottom" if y > 0.3 else "top" if y < -0.3 else "center"


def is_inside(box: Bbox, panel: Bbox) -> bool:
    """Whether all of a box is within another one."""
    return panel.x0 <= box.x0 and box.x1 <= panel.x1 and panel.y0 <= box.y0 and box.y1 <= panel.y1


def place_labels(axes: Axes, points: list[tuple[float, float, str, str]]) -> None:
    """Write each label (x, y, text, colour) at the first place near its point where it covers no other label and no point."""
    axes.figure.canvas.draw()
    renderer = axes.figure.canvas.get_renderer()
    panel = axes.get_window_extent()
    taken = [Bbox.from_bounds(*(axes.transData.transform((x, y)) - 5), 10, 10) for x, y, _, _ in points]
    for x, y, text, colour in sorted(points):
        for right, up, horizontal, vertical in offsets():
            label = axes.annotate(
                text,
                (x, y),
                (right, up),
                textcoords="offset points",
                ha=horizontal,
                va=vertical,
                fontsize=7,
                color=colour,
                arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.8}
                if math.hypot(right, up) > 10
                else None,
            )
            label.update_positions(renderer)
            box = Text.get_window_extent(label).padded(4, 1)  # of the words, without the line to the point
            if is_inside(box, panel) and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            label.remove()


def draw(axes: Axes, records: list[Record], figure_of: Callable[[Record], float]) -> None:
    """The points of a panel, their labels left out."""
    for engine, colour in COLOURS.items():
        points = [(each["bytes"] / 1e6, figure_of(each)) for each in records if each["peer"] == engine]
        if points:
            axes.scatter(*zip(*points, strict=True), color=colour, s=16, label=engine, zorder=3)
    axes.set_xscale("log")
    axes.margins(0.12)
    low, high = axes.get_xlim()
    axes.set_xticks([tick for tick in MEGABYTES if low <= tick <= high])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:,.0f}"))
    axes.minorticks_off()
    axes.set_xlabel("MB of graph and weights")
    axes.grid(alpha=0.3)


def scale_changes(axes: Axes, changes: list[float]) -> None:
    """The axis of perplexity: room for labels above, and no more of what is below none than there are points."""
    axes.set_yscale("symlog", linthresh=LINEAR_BELOW)
    low, high = min([*changes, 0]) - LINEAR_BELOW / 4, 2 * max([*changes, LINEAR_BELOW])
    axes.set_ylim(low, high)
    axes.set_yticks([change for change in CHANGES if low <= change <= high])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda change, _: f"{100 * change:g}%"))
    axes.minorticks_off()


def write_plot(path: Path, records: list[Record], title: str) -> None:
    """Two panels, against the divergence and against the change of perplexity; the float32 reference is left out."""
    records = [each for each in records if each["peer"] in COLOURS]
    panels: tuple[tuple[str, str], ...] = (("kl", "KL from float32, nats per token"), ("perplexity", "change of perplexity"))
    with pyplot.rc_context({"svg.hashsalt": "quality", "svg.fonttype": "none"}):
        figure, both = pyplot.subplots(1, 2, figsize=(12, 6), layout="constrained")
        for axes, (name, title_of_axis) in zip(both, panels, strict=True):
            draw(axes, records, lambda each, name=name: each[name])
            axes.set_ylabel(title_of_axis)
        both[0].set_yscale("log")
        both[0].margins(y=0.12)
        scale_changes(both[1], [each["perplexity"] for each in records])
        both[0].legend(frameon=False, fontsize=8)
        figure.suptitle(title, fontsize=10)
        for axes, (name, _) in zip(both, panels, strict=True):
            points = [(each["bytes"] / 1e6, each[name], short(each["precision"]), COLOURS[each["peer"]]) for each in records]
            place_labels(axes, points)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)
