"""The text of the tab Write: the prompt, then every token in the colour of its probability. A source is a separate text above it.

Selecting or copying gives exactly the text: the style sheet draws the signs for line ends and similar characters.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from .transcripts import Token, Transcript
from .view import BANDS, band, percent, visible

EVENTS = Path(__file__).with_name("text_pane.js").read_text(encoding="utf-8")

INVITATION = (
    "<p>Press <b>Generate</b>: the text appears here, each token in the colour of the probability that the model gave it. Press a "
    "token to see the ten most likely ones at its position; where the model continues its prompt, press one to continue from "
    "it.</p>"
)


def text_html(transcript: Transcript | None) -> str:
    """Prompt and tokens, with a legend of the colours; an invitation before the first text."""
    if transcript is None:
        return f'<section class="written empty">{INVITATION}{legend()}</section>'
    selected = transcript.selected_position
    tokens = "".join(
        token_span(token, place, is_selected=place == selected) for place, token in enumerate(transcript.tokens, start=1)
    )
    prompt = f'<span class="prompt">{escape(transcript.prompt)}</span>'
    source, beginning = (source_html(prompt), "") if transcript.has_source else ("", prompt)
    return (
        f'<section class="written">{source}<header><h2>Text</h2><button type="button" class="copy">Copy</button></header>'
        '<div class="sheet" tabindex="0" role="group" aria-label="Text; left and right arrow go from token to token">'
        f'{beginning}<span class="new">{tokens}</span></div>{legend()}</section>'
    )


def source_html(source: str) -> str:
    """The source of a text, as HTML, under its own title."""
    return f'<h2>Source</h2><div class="source" tabindex="0" role="group" aria-label="Source">{source}</div>'


def token_span(token: Token, place: int, *, is_selected: bool) -> str:
    """A token; leading blanks are outside its coloured part, so that it reads as text."""
    blanks, rest = re.fullmatch("( *)(.*)", token.text, re.DOTALL).groups()  # type: ignore[union-attr]  # matches any text
    if not rest:  # nothing visible to press
        rest, blanks = sign(visible(token.piece)) + blanks, ""
    else:
        rest = escape(rest).replace("\n", f"{sign('⏎')}\n")
    current = ' aria-current="true"' if is_selected else ""
    number = list(BANDS).index(band(token.probability))
    place_of = f'class="token band-{number}" data-place="{place}"{current} title="{percent(token.probability)}"'
    return f"{blanks}<span {place_of}>{rest}</span>"


def sign(shown: str) -> str:
    """A sign for an invisible character; not part of the text."""
    return f'<i data-sign="{escape(shown)}"></i>'


def legend() -> str:
    """The legend of the colours."""
    items = "".join(f'<li class="band-{number}">{name}</li>' for number, name in enumerate(BANDS))
    return f'<ul class="bands" aria-label="Probability of a token">{items}</ul>'
