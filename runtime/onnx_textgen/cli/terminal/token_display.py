"""`generate --show-tokens` and `--logprobs`: the probability of each token, shown while the text is generated.

With colours, `--show-tokens` colours the text by it. Without colours (a pipe, a file, `NO_COLOR`) each token is a line: its
probability, its id, its piece. With `--logprobs` each token is always a line, with its log-probability first and the most likely
tokens at its position last. All probabilities are the model's own, before temperature and truncation.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from . import screen

if TYPE_CHECKING:
    from ...api.model import Model
    from ...results import Chunk

LEVELS = ((0.5, "32"), (0.1, "33"), (0.01, "31"), (0.0, "7;31"))
"""The lowest probability of each colour, in the codes of a terminal: green, yellow, red, reversed red."""
PIECE_COLUMNS = 16
"""Terminal columns of a token's piece in a line of `--logprobs`."""


def style_of(probability: float) -> tuple[str, str]:
    r"""What begins and ends the colour for a token's probability.

    >>> style_of(0.7)
    ('\x1b[32m', '\x1b[0m')
    """
    return f"\033[{next(code for least, code in LEVELS if probability >= least)}m", "\033[0m"


def is_coloured(model: Model) -> bool:
    """Return whether probabilities are shown as colours: if stdout has colours and the model has a tokenizer."""
    return model.generator.opened.has_tokenizer and screen.has_colours(sys.stdout)


def make_coloured_text() -> Callable[[Chunk], None]:
    """Make a display of coloured text; text of several tokens, such as an emoji, has the colour of the least probable one."""
    undecided: list[float] = []

    def show(chunk: Chunk) -> None:
        undecided.extend(chunk.logprobs)
        if chunk.text:
            screen.write(chunk.text, sys.stdout, style_of(math.exp(min(undecided))) if undecided else screen.PLAIN)
            undecided.clear()

    return show


def make_lines(model: Model) -> Callable[[Chunk], None]:
    """Make a display with a line for each token: probability, id, piece."""

    def show(chunk: Chunk) -> None:
        for token_id, logprob in zip(chunk.token_ids, chunk.logprobs, strict=True):
            screen.write(f"{math.exp(logprob):7.2%}  {token_id:>6}{piece_of(model, token_id)}\n", sys.stdout)

    return show


def make_logprob_lines(model: Model) -> Callable[[Chunk], None]:
    """Make a display with a line for each token: log-probability, probability, id, piece, most likely tokens at its position."""

    def show(chunk: Chunk) -> None:
        for_each = chunk.alternatives or ((),) * len(chunk.token_ids)
        for token_id, logprob, alternatives in zip(chunk.token_ids, chunk.logprobs, for_each, strict=True):
            piece = f"{piece_of(model, token_id):<{PIECE_COLUMNS}}"
            others = ", ".join(f"{screen.quoted(one.text)} {math.exp(one.logprob):.2%}" for one in alternatives)
            line = f"{logprob:9.4f}  {math.exp(logprob):7.2%}  {token_id:>6}{piece}  {others}"
            screen.write(f"{line.rstrip()}\n", sys.stdout)

    return show


def piece_of(model: Model, token_id: int) -> str:
    """A token's piece, as a line shows it; empty if the package has no tokenizer."""
    return f"  {screen.quoted(model.tokenizer.piece(token_id))}" if model.generator.opened.has_tokenizer else ""


def show_legend() -> None:
    """Explain the colours on stderr, if stderr has colours."""
    if screen.has_colours(sys.stderr):
        words = ((f"{least:.0%} or more" if least else "less").join(style_of(least)) for least, _ in LEVELS)
        typer.echo("  ".join(words), err=True, color=True)
