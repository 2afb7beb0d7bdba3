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

from . import screen

if TYPE_CHECKING:
    from ...api.model import Model
    from ...results import Chunk

LEVELS: tuple[tuple[float, str], ...] = ((0.5, "green"), (0.1, "yellow"), (0.01, "red"), (0.0, "reverse red"))
"""The lowest probability of each colour."""
PIECE_COLUMNS = 16
"""Terminal columns of a token's piece in a line of `--logprobs`."""


def style_of(probability: float) -> str:
    """The colour for a token's probability.

    >>> style_of(0.7), style_of(0.1), style_of(0.0)
    ('green', 'yellow', 'reverse red')
    """
    return next(style for least, style in LEVELS if probability >= least)


def is_coloured(model: Model) -> bool:
    """Return whether probabilities are shown as colours: if stdout has colours and the model has a tokenizer."""
    return model.has_tokenizer and screen.has_colours(sys.stdout)


def make_coloured_text() -> Callable[[Chunk], None]:
    """Make a display of coloured text; text of several tokens, such as an emoji, has the colour of the least probable one."""
    console = screen.make_console(force_terminal=True)
    undecided: list[float] = []

    def show(chunk: Chunk) -> None:
        undecided.extend(chunk.logprobs)
        if chunk.text:
            screen.take_row(chunk.text, sys.stdout)
            style = style_of(math.exp(min(undecided))) if undecided else ""
            console.print(chunk.text.translate(screen.CONTROL_CHARACTERS), style=style, end="", soft_wrap=True)
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
    return f"  {screen.quoted(model.tokenizer.piece(token_id))}" if model.has_tokenizer else ""


def show_legend() -> None:
    """Explain the colours on stderr, if stderr has colours."""
    if screen.has_colours(sys.stderr):
        from rich.text import Text  # noqa: PLC0415

        words = [(f"{least:.0%} or more" if least else "less", style) for least, style in LEVELS]
        screen.make_console(stderr=True, force_terminal=True).print(Text("  ").join(Text(*each) for each in words))
