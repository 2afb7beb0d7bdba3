"""The text that was written, once: the prompt, and behind it every token in the colour of its probability.

Selected or copied, it is the text to the letter: signs for line ends and the like are drawn by the style sheet.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from .transcript import Token, Transcript
from .view import BANDS, band, percent, visible

EVENTS = Path(__file__).with_name("written.js").read_text(encoding="utf-8")

INVITATION = (
    "<p>Press <b>Generate</b>: the text appears here, each token in the colour of the probability that the model gave it. Press a "
    "token to see the ten likeliest at its place, and one of those to go on from there.</p>"
)


def written(transcript: Transcript | None) -> str:
    """Prompt and tokens, with what the colours mean; before there are any, what will be here."""
    if transcript is None:
        return f'<section class="written empty">{INVITATION}{legend()}</section>'
    looked_at = transcript.looked_at
    tokens = "".join(
        token_span(token, place, is_looked_at=place == looked_at) for place, token in enumerate(transcript.tokens, start=1)
    )
    return (
        '<section class="written"><header><h2>Text</h2><button type="button" class="copy">Copy</button></header>'
        '<div class="sheet" tabindex="0" role="group" aria-label="Text; left and right arrow go from token to token">'
        f'<span class="prompt">{escape(transcript.prompt)}</span><span class="new">{tokens}</span></div>{legend()}</section>'
    )


def token_span(token: Token, place: int, *, is_looked_at: bool) -> str:
    """A token; blanks before it stay outside of its colour, so that it reads as text."""
    blanks, rest = re.fullmatch("( *)(.*)", token.text, re.DOTALL).groups()  # type: ignore[union-attr]  # matches any text
    if not rest:  # nothing to see and nothing to press
        rest, blanks = sign(visible(token.piece)) + blanks, ""
    else:
        rest = escape(rest).replace("\n", f"{sign('⏎')}\n")
    current = ' aria-current="true"' if is_looked_at else ""
    number = list(BANDS).index(band(token.probability))
    place_of = f'class="token band-{number}" data-place="{place}"{current} title="{percent(token.probability)}"'
    return f"{blanks}<span {place_of}>{rest}</span>"


def sign(shown: str) -> str:
    """What stands for something that cannot be seen; not part of the text."""
    return f'<i data-sign="{escape(shown)}"></i>'


def legend() -> str:
    """What the colours mean."""
    items = "".join(f'<li class="band-{number}">{name}</li>' for number, name in enumerate(BANDS))
    return f'<ul class="bands" aria-label="Probability of a token">{items}</ul>'
