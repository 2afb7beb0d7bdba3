r"""Formulas in Markdown: which parts of a text are LaTeX, as HTML that `formulas.js` draws.

A formula stands between `\(` and `\)`, `\[` and `\]`, `$$` and `$$`, or, as Pandoc reads it, `$` and `$`: the first with no blank
after it, the last with no blank before and no digit after it, so that prices are none. Gradio's page carries KaTeX; a formula
that it does not know, or that is not complete yet, stays as it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import gradio
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

CLOSINGS = {r"\(": r"\)", r"\[": r"\]", "$$": "$$", "$": "$"}
"""What ends a formula, by what begins it."""
ON_A_LINE = (r"\[", "$$")
"""What begins a formula that has its lines to itself."""
LONGEST = 2_000
"""Characters of a formula; a longer one stays as it was written."""
ASSETS = Path(gradio.__file__).parent / "templates" / "frontend" / "assets"


def katex_files() -> list[str]:
    """Paths on the page of KaTeX's script and its style sheet; empty if this version of Gradio has none."""
    found = [next(iter(ASSETS.glob(f"katex-*.{kind}")), None) for kind in ("js", "css")]
    return [f"assets/{path.name}" for path in found if path is not None] if all(found) else []


def find_inline(text: str, start: int) -> tuple[str, str] | None:
    r"""The LaTeX of the formula that begins at a place of a text, and its beginning; None if there is none.

    >>> find_inline("so $x^2$.", 3), find_inline("from $5 to $6", 5), find_inline(r"\(a\)", 0)
    (('x^2', '$'), None, ('a', '\\('))
    """
    opening = next((each for each in CLOSINGS if text.startswith(each, start)), None)
    if opening is None:
        return None
    begin, closing = start + len(opening), CLOSINGS[opening]
    end = text.find(closing, begin, begin + LONGEST)
    while end > 0 and text[end - 1] == "\\" and closing.startswith("$"):  # `\$` is a dollar in a formula
        end = text.find(closing, end + 1, begin + LONGEST)
    tex = text[begin:end]
    if end < 0 or not tex.strip() or "`" in tex:
        return None
    after = text[end + len(closing) : end + len(closing) + 1]
    if opening == "$" and (tex != tex.strip() or after.isdigit()):
        return None
    return tex, opening


def inline_rule(state: StateInline, silent: bool) -> bool:
    """markdown-it's rule for formulas within a line."""
    found = find_inline(state.src, state.pos) if state.src[state.pos] in "\\$" else None
    if found is None:
        return False
    tex, opening = found
    if not silent:
        token = state.push("formula", "", 0)
        token.content, token.markup = tex, opening
    state.pos += len(opening) + len(tex) + len(CLOSINGS[opening])
    return True


def block_rule(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """markdown-it's rule for formulas that have their lines to themselves, in which no line is an item of a list or a heading."""
    if state.is_code_block(start):
        return False
    first = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]]
    opening = next((each for each in ON_A_LINE if first.startswith(each)), None)
    if opening is None:
        return False
    lines, number = [first[len(opening) :]], start
    while not lines[-1].rstrip().endswith(CLOSINGS[opening]):
        number += 1
        if number >= end or state.isEmpty(number) or state.sCount[number] < state.blkIndent:
            return False
        lines.append(state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]])
    tex = "\n".join(lines).rstrip().removesuffix(CLOSINGS[opening])
    if not tex.strip() or len(tex) > LONGEST or CLOSINGS[opening] in tex:
        return False
    if not silent:
        token = state.push("formula", "", 0)
        token.content, token.markup, token.block, token.map = tex, opening, True, [start, number + 1]
        state.line = number + 1
    return True


def render(tokens: Sequence[Token], index: int, *_: object) -> str:
    """The HTML of a formula: its LaTeX, and as text what was written; on lines that it has to itself it scrolls if it is wide."""
    token = tokens[index]
    written = escape(f"{token.markup}{token.content}{CLOSINGS[token.markup]}")
    data = f'data-tex="{escape(token.content.strip())}"{" data-display" if token.markup in ON_A_LINE else ""}'
    if token.block:
        return f'<div class="formula" tabindex="0" {data}>{written}</div>\n'
    return f'<span class="formula" {data}>{written}</span>'


def add_formulas(parser: MarkdownIt) -> None:
    """Let a parser read formulas."""
    parser.inline.ruler.before("escape", "formula", inline_rule)
    parser.block.ruler.before("fence", "formula", block_rule, {"alt": ["paragraph", "reference", "blockquote", "list"]})
    parser.renderer.rules["formula"] = render  # type: ignore[attr-defined]
