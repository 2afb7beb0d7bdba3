"""The picture of the stage Attention: which token attends to which, for one head, as a heat map and in numbers.

Pure functions from data to HTML; text from a model or a prompt is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from onnx_textgen.diagnostics.inspection import Token
from onnx_textgen.errors import OnnxTextgenError
from onnx_textgen.tasks.attention_maps import AttentionMaps, Maps

from ..view import percent, visible
from .drawing import bar_rows
from .step_inspection import StepInspector

MOST_LOOKED_AT = 8
"""Number of bars for the tokens that the last one attends to."""
MOST_COLUMNS = 48
"""Number of columns for the tokens of a long source."""
INTRO = (
    "<p>With <b>attention</b> a token looks back: it gives itself and each token before it a share, and takes in more of a "
    "token with a larger share. Every layer has a number of <b>heads</b>, and each distributes its shares differently.</p>"
)
CROSS_INTRO = (
    "<p>With <b>cross-attention</b> a token of the text looks at the source: it gives each of its tokens a share, and takes in "
    "more of a token with a larger share. Every layer has a number of <b>heads</b>, and each distributes its shares differently."
    "</p>"
)


def attention_picture(inspector: StepInspector, number: int) -> str:
    """The heat map of one head, and its last row in numbers; of an encoder-decoder first that of the source."""
    intro = CROSS_INTRO if inspector.source_ids else INTRO
    if not inspector.model.manifest.has_attention_maps:
        return (
            f"{intro}<p>This package was exported without attention maps. To get them, export it again: "
            "<code>onnx-textgen export SOURCE --out DIR --attention-maps</code></p>"
        )
    try:
        maps = inspector.attention(number)
    except OnnxTextgenError as error:
        return f"{intro}<p>{escape(str(error))}</p>"
    place = f"layer {maps.layers[inspector.layer] + 1}, head {inspector.head + 1}"
    own = maps.weights[inspector.layer, inspector.head]
    if not inspector.source_ids:
        return intro + picture_of_text(maps, own, place)
    return (
        f"{intro}{picture_of_source(maps, maps.cross_weights[inspector.layer, inspector.head], place)}"
        f"<details><summary>How it looks back at its own text</summary>{picture_of_text(maps, own, place)}</details>"
    )


def picture_of_text(maps: AttentionMaps, weights: Maps, place: str) -> str:
    """One head's shares [rows, tokens] of the text itself."""
    before = len(maps.pieces) - len(weights)
    cut = f" Of this text the last {len(weights)} tokens are shown, those before them as one column." if before else ""
    return (
        "<p>A row is a token that looks, a column one that is looked at. No token looks ahead, a row adds up to "
        f"{total_of(weights)}.{cut}</p>{heat_map(maps, weights, place)}"
        f"{last_row(maps, place)}{bar_rows(looked_at(maps.token_ids, maps.pieces, weights[-1]))}"
        f"{attention_table(maps, maps.pieces, weights, triangular=True)}"
    )


def picture_of_source(maps: AttentionMaps, weights: Maps, place: str) -> str:
    """One head's shares [rows, source tokens] of the source."""
    before, tokens = len(maps.pieces) - len(weights), len(maps.source_pieces)
    shown = np.sort(np.argsort(-weights.max(axis=0), kind="stable")[:MOST_COLUMNS])
    cut = f" Of this text the last {len(weights)} tokens are shown." if before else ""
    if len(shown) < tokens:
        cut += f" Of the {tokens:,} tokens of the source, the {len(shown)} that are looked at most are shown."
    columns, rows = names_of([maps.source_pieces[place] for place in shown]), names_of(maps.pieces[before:])
    label = f"Heat map of {place}: {len(rows)} tokens of the text that look, {len(columns)} of the source; in numbers below"
    return (
        "<p>A row is a token of the text, from the one that it begins with, a column a token of the source. A row adds up to "
        f"{total_of(weights)}.{cut}</p>{grid(columns, rows, weights[:, shown], label)}"
        f"{last_row(maps, place)}{bar_rows(looked_at(maps.source_ids, maps.source_pieces, weights[-1]))}"
        f"{attention_table(maps, maps.source_pieces, weights, triangular=False)}"
    )


def total_of(weights: Maps) -> str:
    """What a row adds up to, in words."""
    return (
        "100&nbsp;%"
        if weights[-1].sum() > 0.99
        else "less than 100&nbsp;%: the rest goes to an attention sink, or to the other map of a layer that attends to both at once"
    )


def last_row(maps: AttentionMaps, place: str) -> str:
    """What comes before the bars of the last row."""
    return (
        f"<p>The last token, <b><code>{escape(visible(maps.pieces[-1]))}</code></b>, is the one that the model continues from. "
        f"In {place} it looks most at:</p>"
    )


def names_of(pieces: Sequence[str]) -> list[str]:
    """Tokens as names of rows or columns."""
    return [f"<code>{escape(visible(piece))}</code>" for piece in pieces]


def heat_map(maps: AttentionMaps, weights: Maps, place: str) -> str:
    """One head's shares [rows, tokens] as a grid of coloured cells; tokens before the first row are summed in one column."""
    rows, tokens = weights.shape
    before = tokens - rows
    names = names_of(maps.pieces[before:])
    columns = [f"… {before:,} before", *names] if before else names
    cells = np.concatenate([weights[:, :before].sum(axis=1, keepdims=True), weights[:, before:]], axis=1) if before else weights
    label = f"Heat map of {place}: {rows} tokens that look, {len(columns)} columns of tokens looked at; in numbers below"
    return grid(columns, names, [cells[row, : row + 1 + bool(before)] for row in range(rows)], label)


def grid(columns: Sequence[str], names: Sequence[str], rows: Iterable[Maps], label: str) -> str:
    """Rows of shares as coloured cells; a row may have fewer cells than there are columns."""
    lines = "".join(f'<span class="at">{name}</span>' for name in columns)
    for name, row in zip(names, rows, strict=True):
        lines += f'<span class="looks">{name}</span>' + "".join(heat_cell(float(share)) for share in row)
        lines += f'<span style="grid-column:span {len(columns) - len(row)}"></span>' if len(row) < len(columns) else ""
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


def looked_at(ids: Sequence[int], pieces: Sequence[str], shares: Maps) -> Iterable[tuple[Token, float, str, str, str]]:
    """The largest shares of a row, as bars."""
    for place in np.argsort(-shares, kind="stable")[:MOST_LOOKED_AT].tolist():
        share = float(shares[place])
        yield Token(ids[place], pieces[place]), share, percent(share), f"position {place}", "drawn"


def attention_table(maps: AttentionMaps, pieces: Sequence[str], weights: Maps, *, triangular: bool) -> str:
    """The three largest shares of every row, for readers who do not see the colours; `triangular`: of the tokens up to its own."""
    first = len(maps.pieces) - len(weights)
    lines = "".join(
        f"<tr><td>{first + row}</td><th scope=row><code>{escape(visible(maps.pieces[first + row]))}</code></th>"
        + "".join(
            f"<td><code>{escape(visible(pieces[place]))}</code> ({place}) {percent(float(shares[place]))}</td>"
            for place in np.argsort(-shares, kind="stable")[: min(3, first + row + 1) if triangular else 3].tolist()
        )
        + "</tr>"
        for row, shares in enumerate(weights)
    )
    return (
        '<details><summary>Every row in numbers</summary><div class="scroll" tabindex="0"><table class="facts"><thead><tr>'
        f'<th>position</th><th>token</th><th colspan="3">looks most at (position)</th></tr></thead><tbody>{lines}</tbody></table>'
        "</div></details>"
    )
