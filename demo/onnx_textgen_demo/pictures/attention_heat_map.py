"""The picture of the stage Attention: which token attends to which, for one head, as a heat map and in numbers.

Pure functions from data to HTML; text from a model or a prompt is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import numpy as np

from onnx_textgen.diagnostics.inspection import Token
from onnx_textgen.errors import OnnxTextgenError
from onnx_textgen.inference.attention_maps import AttentionMaps, Maps

from ..view import percent, visible
from .drawing import bar_rows
from .step_inspection import StepInspector

MOST_LOOKED_AT = 8
"""Number of bars for the tokens that the last one attends to."""


def attention_picture(inspector: StepInspector, number: int) -> str:
    """The heat map of one head, and its last row in numbers."""
    intro = (
        "<p>With <b>attention</b> a token looks back: it gives itself and each token before it a share, and takes in more of a "
        "token with a larger share. Every layer has a number of <b>heads</b>, and each distributes its shares differently.</p>"
    )
    if not inspector.model.opened.has_attention_maps:
        return (
            f"{intro}<p>This package was exported without attention maps. To get them, export it again: "
            "<code>onnx-textgen export SOURCE --out DIR --attention-maps</code></p>"
        )
    try:
        maps = inspector.attention(number)
    except OnnxTextgenError as error:
        return f"{intro}<p>{escape(str(error))}</p>"
    weights = maps.weights[inspector.layer, inspector.head]
    place = f"layer {maps.layers[inspector.layer] + 1}, head {inspector.head + 1}"
    before = len(maps.pieces) - len(weights)
    total = "100&nbsp;%" if weights[-1].sum() > 0.99 else "less than 100&nbsp;%, as an attention sink takes the rest"
    cut = f" Of this text the last {len(weights)} tokens are shown, those before them as one column." if before else ""
    return (
        f"{intro}<p>A row is a token that looks, a column one that is looked at. No token looks ahead, a row adds up to {total}."
        f"{cut}</p>{heat_map(maps, weights, place)}"
        f"<p>The last token, <b><code>{escape(visible(maps.pieces[-1]))}</code></b>, is the one that the model continues from. "
        f"In {place} it looks most at:</p>{bar_rows(looked_at(maps, weights))}{attention_table(maps, weights)}"
    )


def heat_map(maps: AttentionMaps, weights: Maps, place: str) -> str:
    """One head's shares [rows, tokens] as a grid of coloured cells; tokens before the first row are summed in one column."""
    rows, tokens = weights.shape
    before = tokens - rows
    names = [f"<code>{escape(visible(piece))}</code>" for piece in maps.pieces[before:]]
    columns = [f"… {before:,} before", *names] if before else names
    cells = np.concatenate([weights[:, :before].sum(axis=1, keepdims=True), weights[:, before:]], axis=1) if before else weights
    lines = "".join(f'<span class="at">{name}</span>' for name in columns)
    for row, name in enumerate(names):
        seen = row + 1 + bool(before)
        lines += f'<span class="looks">{name}</span>' + "".join(heat_cell(float(share)) for share in cells[row, :seen])
        lines += f'<span style="grid-column:span {len(columns) - seen}"></span>' if seen < len(columns) else ""
    label = f"Heat map of {place}: {rows} tokens that look, {len(columns)} columns of tokens looked at; in numbers below"
    return (
        f'<div class="heat" tabindex="0"><div role="img" aria-label="{label}" style="--columns:{len(columns)}">'
        f"<span></span>{lines}</div>{heat_legend()}</div>"
    )


def heat_cell(share: float) -> str:
    """A share as a coloured cell. The colour shows its square root, because most shares are small and 3 % would look like none."""
    return f'<i style="--strength:{100 * share**0.5:.1f}%" title="{percent(share)}"></i>'


def heat_legend() -> str:
    """The legend of the colours."""
    items = "".join(f"<span>{heat_cell(share)} {100 * share:g} %</span>" for share in (0, 0.01, 0.1, 0.3, 1))
    return f'<p class="legend" aria-hidden="true">{items}</p>'


def looked_at(maps: AttentionMaps, weights: Maps) -> Iterable[tuple[Token, float, str, str, str]]:
    """The largest shares of the last row, as bars."""
    for place in np.argsort(-weights[-1], kind="stable")[:MOST_LOOKED_AT].tolist():
        share = float(weights[-1, place])
        yield Token(maps.token_ids[place], maps.pieces[place]), share, percent(share), f"position {place}", "drawn"


def attention_table(maps: AttentionMaps, weights: Maps) -> str:
    """The three largest shares of every row, for readers who do not see the colours."""
    first = len(maps.pieces) - len(weights)
    lines = "".join(
        f"<tr><td>{first + row}</td><th scope=row><code>{escape(visible(maps.pieces[first + row]))}</code></th>"
        + "".join(
            f"<td><code>{escape(visible(maps.pieces[place]))}</code> ({place}) {percent(float(shares[place]))}</td>"
            for place in np.argsort(-shares, kind="stable")[: min(3, first + row + 1)].tolist()
        )
        + "</tr>"
        for row, shares in enumerate(weights)
    )
    return (
        '<details><summary>Every row in numbers</summary><div class="scroll" tabindex="0"><table class="facts"><thead><tr>'
        f'<th>position</th><th>token</th><th colspan="3">looks most at (position)</th></tr></thead><tbody>{lines}</tbody></table>'
        "</div></details>"
    )
