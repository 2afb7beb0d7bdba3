"""Renders a transcript: a table of its tokens, bars of the distribution at one of them, a status line.

Pure functions from data to the values of Gradio components. Where these are HTML, every text from a model, a prompt or a
package is escaped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from onnx_textgen import sizes
from onnx_textgen.text.tokenizer_json import BYTE_TOKEN

from .transcripts import Token, Transcript

if TYPE_CHECKING:
    from onnx_textgen import Model, Stats
    from onnx_textgen.package.manifest import Manifest

BANDS = {"80 % or more": 0.8, "40 to 80 %": 0.4, "10 to 40 %": 0.1, "2 to 10 %": 0.02, "below 2 %": 0.0}
"""Bands of probability, from likely to surprising: the name in the page's legend, and the lowest probability."""

Fact = tuple[str, str]
"""A name, and its value as HTML."""

TABLE_HEADERS = ["Position", "Token", "Probability"]

ENDINGS = {
    "eos": "the model ended its text",
    "length": "reached max new tokens",
    "stop": "met a stop string",
    "context": "the context is full",
    "loop": "began to repeat itself",
    "cancelled": "stopped by you",
    "deadline": "out of time",
}


def percent(probability: float) -> str:
    """A probability as text.

    >>> percent(0.8512), percent(0.00312), percent(0.0000004)
    ('85.1 %', '0.31 %', '< 0.01 %')
    """
    if probability < 0.0001:
        return "< 0.01 %"
    return f"{100 * probability:.1f} %" if probability >= 0.01 else f"{100 * probability:.2f} %"


def visible(piece: str) -> str:
    r"""A piece with visible signs for spaces and line ends, and with codes for unprintable characters.

    >>> visible(" cat"), visible("end.\n"), visible("<0x0A>")
    ('␣cat', 'end.⏎', '⏎')
    """
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥"}
    shown = (signs.get(each, each if each.isprintable() else ascii(each)[1:-1]) for each in character_of(piece))
    return "".join(shown) or "(empty)"


def character_of(piece: str) -> str:
    r"""The character of a single-byte token, if the byte is a character; any other piece unchanged.

    >>> character_of("<0x0A>"), character_of("<0xE2>")
    ('\n', '<0xE2>')
    """
    byte = int(piece[3:5], 16) if BYTE_TOKEN.fullmatch(piece) else 0x80
    return chr(byte) if byte < 0x80 else piece


def band(probability: float) -> str:
    """The name of a probability's band.

    >>> band(0.5)
    '40 to 80 %'
    """
    return next(name for name, lowest in BANDS.items() if probability >= lowest)


def rows(tokens: Sequence[Token]) -> list[list[str | int]]:
    """The tokens for `gr.Dataframe`, under `TABLE_HEADERS`."""
    return [[position, visible(token.piece), percent(token.probability)] for position, token in enumerate(tokens, 1)]


CHOICE_EVENTS = """element.addEventListener("click", (event) => {
  const chosen = event.target.closest("button[data-place]");
  if (chosen) trigger("select", { index: Number(chosen.dataset.place), value: "" });
});"""
"""A pressed button reports its position as `SelectData.index`."""

ALTERNATIVE_EVENTS = """element.addEventListener("click", (event) => {
  const chosen = event.target.closest("button[data-alternative]");
  if (chosen) trigger("submit", { alternative: JSON.parse(chosen.dataset.alternative) });
});"""
"""A pressed alternative reports its position and rank as `EventData.alternative`."""


def bars(tokens: Sequence[Token], position: int, *, choosable: bool = False) -> str:
    """The distribution at a position (1 = first generated token) as bars, with the drawn token marked; empty without tokens.

    `choosable`: the other tokens are buttons that continue from them; not during a generation.
    """
    if not 1 <= position <= len(tokens):
        return ""
    token = tokens[position - 1]
    lines = [
        bar(
            alternative.piece,
            alternative.probability,
            drawn=rank == token.rank,
            alternative=(position, rank) if choosable and rank != token.rank else None,
        )
        for rank, alternative in enumerate(token.alternatives)
    ]
    if token.rank is None:
        lines.append(bar(token.piece, token.probability, drawn=True))
    note = f"What the model expected as token {position}, before temperature and truncation."
    if choosable:
        note += " Choose another to continue from it."
    return (
        f'<section class="bars"><h2>Alternatives</h2><p>{note}</p>{step_buttons(position, len(tokens))}'
        f"<table><tbody>{''.join(lines)}</tbody></table></section>"
    )


def step_buttons(position: int, count: int) -> str:
    """Buttons for the previous and next token, because the coloured tokens may be too small to press."""
    steps = [("← token before", position - 1), ("token after →", position + 1)]
    buttons = (
        f'<button type="button" data-place="{place}"{"" if 1 <= place <= count else " disabled"}>{name}</button>'
        for name, place in steps
    )
    return f'<p class="steps">{" ".join(buttons)}</p>'


def bar(piece: str, probability: float, *, drawn: bool, alternative: tuple[int, int] | None = None) -> str:
    """One row of `bars`; as an `alternative` its token is a button."""
    mark = '<span class="mark">drawn</span>' if drawn else ""
    token = f"<code>{escape(visible(piece))}</code>"
    if alternative:
        place = f'data-alternative="{list(alternative)}" title="Continue from here with this token"'
        token = f'<button type="button" {place}>{token}</button>'
    return (
        f'<tr class="{"drawn" if drawn else "other"}"><th scope="row">{token}{mark}</th>'
        f'<td class="track"><span style="width:{100 * probability:.2f}%"></span></td>'
        f'<td class="amount">{percent(probability)}</td></tr>'
    )


def status(transcript: Transcript | None, *, problem: str | None = None) -> str:
    """The status line of a text: figures, and how it ended. `problem`: an error before the text began."""
    problem = problem or (transcript.problem if transcript else None)
    facts: list[Fact] = []
    if transcript and transcript.tokens:
        speed, wait = transcript.tokens_per_second, transcript.first_token_seconds
        facts = [
            ("tokens", f"{len(transcript.tokens):,}"),
            ("tokens/s", f"{speed:,.1f}" if speed else "-"),
            ("first token", f"{1000 * wait:,.0f} ms" if wait else "-"),
            *([from_cache(transcript.stats)] if transcript.stats else []),
            ("seed", str(transcript.seed)),
        ]
    return status_line(facts, problem or state(transcript), is_problem=bool(problem))


def from_cache(stats: Stats) -> Fact:
    """How many tokens of the prompt came from the cache."""
    return "from cache", f"{stats.reused_tokens:,} of {stats.prompt_tokens:,}"


def status_line(facts: Sequence[Fact], message: str, *, is_problem: bool = False) -> str:
    """A line of names with their values, and a message."""
    items = "".join(f"<span>{name} <b>{value}</b></span>" for name, value in facts)
    role = ' role="alert"' if is_problem else ""  # A screen reader speaks it; it should not speak numbers that change all the time.
    return f'<div class="status">{items}<span class="state"{role}>{escape(message)}</span></div>'


def state(transcript: Transcript | None) -> str:
    """The activity of a generation, or how it ended."""
    if transcript is None:
        return ""
    if transcript.finish_reason is None:
        return "writing ..." if transcript.tokens else "reading the prompt ..."
    return finished(transcript.finish_reason)


def finished(reason: str) -> str:
    """How a text ended, with an explanation."""
    return f"finished: {reason} ({ENDINGS[reason]})" if reason in ENDINGS else f"finished: {reason}"


def masthead(name: str, model: Model) -> str:
    """The title of the page and the properties of its model; `name`: the model's name on the page."""
    manifest = model.manifest
    chips = [
        ("model", name),
        ("precision", manifest.precision_name),
        ("device", model.device),
        ("size", sizes.in_words(manifest.size_bytes)),
        ("context", f"{manifest.geometry.context_length:,} tokens"),
        *source_of(manifest),
    ]
    items = "".join(f'<li title="{name}"><span>{name}</span> {escape(value)}</li>' for name, value in chips)
    return title(f"<ul>{items}</ul>")


def source_of(manifest: Manifest) -> list[Fact]:
    """How much an encoder-decoder reads at once."""
    if manifest.speech is not None:
        return [("sound at once", f"{manifest.speech.samples / manifest.speech.sampling_rate:g} s")]
    return [] if manifest.encoder is None else [("source", f"{manifest.encoder.source_length:,} tokens")]


def cannot_load(name: str, reason: str) -> str:
    """The title of the page and the reason why a package cannot be loaded."""
    return title(f'<p class="problem" role="alert"><b>{escape(name)}</b> cannot be used: {escape(reason)}</p>')


def title(after: str) -> str:
    """The page's name, with what follows it in its line."""
    return f'<header class="masthead"><h1>onnx-textgen</h1>{after}</header>'
