"""`generate --show-tokens` and `--logprobs`: how probable the model found each token, while the text comes.

With colours the text stays a text, and its colours say it. Without (a pipe, a file, `NO_COLOR`) each token is a line: its
probability, its id, its piece. With `--logprobs` it is a line too, with the log-probability first and the likeliest tokens at its
place last. All are the model's own, before temperature and cuts.
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
"""The least probability of each colour."""
PIECE = 16
"""Columns of a token's text before the others at its place."""


def style_of(probability: float) -> str:
    """The colour of a token.

    >>> style_of(0.7), style_of(0.1), style_of(0.0)
    ('green', 'yellow', 'reverse red')
    """
    return next(style for least, style in LEVELS if probability >= least)


def is_coloured(model: Model) -> bool:
    """Whether colours show it: where stdout has them, and the model has a text to colour."""
    return model.has_tokenizer and screen.has_colours(sys.stdout)


def make_coloured() -> Callable[[Chunk], None]:
    """Text in colours; what several tokens wrote together, such as an emoji, has the colour of the least probable."""
    console = screen.screen(force_terminal=True)
    undecided: list[float] = []

    def show(chunk: Chunk) -> None:
        undecided.extend(chunk.logprobs)
        if chunk.text:
            style = style_of(math.exp(min(undecided))) if undecided else ""
            console.print(chunk.text.translate(screen.CONTROL_CHARACTERS), style=style, end="", soft_wrap=True)
            undecided.clear()

    return show


def make_lines(model: Model) -> Callable[[Chunk], None]:
    """A line for each token."""

    def show(chunk: Chunk) -> None:
        for token_id, logprob in zip(chunk.token_ids, chunk.logprobs, strict=True):
            screen.write(f"{math.exp(logprob):7.2%}  {token_id:>6}{piece_of(model, token_id)}\n", sys.stdout)

    return show


def make_weighed(model: Model) -> Callable[[Chunk], None]:
    """The same with the log-probability before, and behind it the likeliest tokens at the place."""

    def show(chunk: Chunk) -> None:
        others = chunk.alternatives or ((),) * len(chunk.token_ids)
        for token_id, logprob, weighed in zip(chunk.token_ids, chunk.logprobs, others, strict=True):
            likeliest = ", ".join(f"{screen.quoted(one.text)} {math.exp(one.logprob):.2%}" for one in weighed)
            line = f"{logprob:9.4f}  {math.exp(logprob):7.2%}  {token_id:>6}{piece_of(model, token_id):<{PIECE}}  {likeliest}"
            screen.write(f"{line.rstrip()}\n", sys.stdout)

    return show


def piece_of(model: Model, token_id: int) -> str:
    """A token as a line shows it; nothing where the package has no tokenizer."""
    return f"  {screen.quoted(model.tokenizer.piece(token_id))}" if model.has_tokenizer else ""


def show_legend() -> None:
    """Say on stderr what the colours mean, where it has colours."""
    if screen.has_colours(sys.stderr):
        from rich.text import Text  # noqa: PLC0415

        words = [(f"{least:.0%} or more" if least else "less", style) for least, style in LEVELS]
        screen.screen(stderr=True, force_terminal=True).print(Text("  ").join(Text(*each) for each in words))
