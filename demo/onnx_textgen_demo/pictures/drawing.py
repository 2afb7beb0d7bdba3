"""Elements of the pictures of the tab Look inside: bars, tiles of tokens, numbers with nouns.

Pure functions from data to HTML; text from a model or a prompt is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from onnx_textgen.diagnostics.inspection import Token

from ..view import visible

MOST_SHOWN = 48
"""Number of tokens of a long prompt that are drawn; the last ones."""


def bar_rows(rows: Iterable[tuple[Token, float, str, str, str]]) -> str:
    """A table of bars: token, length from 0 to 1, number, note, kind (`drawn`, `other` or `cut`)."""
    lines = "".join(
        f'<tr class="{kind}"><th scope="row"><code>{escape(visible(token.piece))}</code></th>'
        f'<td class="track"><span style="width:{100 * length:.2f}%"></span></td>'
        f'<td class="amount">{amount}</td><td class="note">{note}</td></tr>'
        for token, length, amount, note, kind in rows
    )
    return f'<div class="bars"><table><tbody>{lines}</tbody></table></div>'


def pieces(tokens: Sequence[Token]) -> str:
    """Tokens as tiles, piece above id; only the last ones of a long list."""
    left_out = len(tokens) - MOST_SHOWN
    more = f"<li>… {left_out:,} before</li>" if left_out > 0 else ""
    tiles = "".join(
        f"<li><code>{escape(visible(token.piece))}</code><small>{token.id}</small></li>" for token in tokens[-MOST_SHOWN:]
    )
    return f'<ul class="tiles">{more}{tiles}</ul>'


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "token"), count(2048, "token")
    ('1 token', '2,048 tokens')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
