"""How a transcript looks: a table of its tokens, the bars of the distribution at one of them, a line of numbers.

Pure functions from data to what a Gradio component shows. Where that is HTML, every text that came from a model, a prompt or a
package is escaped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from onnx_textgen.text.tokenizer import BYTE_TOKEN

from .transcript import Token, Transcript

if TYPE_CHECKING:
    from onnx_textgen import Chunk, Model, Stats

BANDS = {"80 % or more": 0.8, "40 to 80 %": 0.4, "10 to 40 %": 0.1, "2 to 10 %": 0.02, "below 2 %": 0.0}
"""From a likely token to a surprising one: names, as they stand in the page's legend, and where each begins."""

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
    """A probability for a person.

    >>> percent(0.8512), percent(0.00312), percent(0.0000004)
    ('85.1 %', '0.31 %', '< 0.01 %')
    """
    if probability < 0.0001:
        return "< 0.01 %"
    return f"{100 * probability:.1f} %" if probability >= 0.01 else f"{100 * probability:.2f} %"


def visible(piece: str) -> str:
    r"""A piece with its spaces and line ends made visible, and other characters without a shape by their codes.

    >>> visible(" cat"), visible("end.\n"), visible("<0x0A>")
    ('␣cat', 'end.⏎', '⏎')
    """
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥"}
    shown = (signs.get(each, each if each.isprintable() else ascii(each)[1:-1]) for each in character_of(piece))
    return "".join(shown) or "(empty)"


def character_of(piece: str) -> str:
    r"""What a token of a single byte stands for, where that is a character; any other piece as it is.

    >>> character_of("<0x0A>"), character_of("<0xE2>")
    ('\n', '<0xE2>')
    """
    byte = int(piece[3:5], 16) if BYTE_TOKEN.fullmatch(piece) else 0x80
    return chr(byte) if byte < 0x80 else piece


def band(probability: float) -> str:
    """The name of the band a probability falls in.

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
"""A button that is pressed tells its place as `SelectData.index`."""

RIVAL_EVENTS = """element.addEventListener("click", (event) => {
  const chosen = event.target.closest("button[data-rival]");
  if (chosen) trigger("submit", { rival: JSON.parse(chosen.dataset.rival) });
});"""
"""A rival that is pressed tells its position and rank as `EventData.rival`."""


def bars(tokens: Sequence[Token], position: int, *, choosable: bool = False) -> str:
    """The distribution at a position (1 = first generated token) as bars, the drawn token marked; nothing before there is one.

    `choosable`: the other tokens are buttons, to go on from them; they are not while a text is still being written.
    """
    if not 1 <= position <= len(tokens):
        return ""
    token = tokens[position - 1]
    lines = [
        bar(
            rival.piece,
            rival.probability,
            drawn=rank == token.rank,
            rival=(position, rank) if choosable and rank != token.rank else None,
        )
        for rank, rival in enumerate(token.rivals)
    ]
    if token.rank is None:
        lines.append(bar(token.piece, token.probability, drawn=True))
    note = f"What the model expected as token {position}, before temperature and cuts."
    if choosable:
        note += " Choose another to go on from it."
    return (
        f'<section class="bars"><h2>Rivals</h2><p>{note}</p>{step_buttons(position, len(tokens))}'
        f"<table><tbody>{''.join(lines)}</tbody></table></section>"
    )


def step_buttons(position: int, count: int) -> str:
    """To the token before and the one after, where the coloured ones are too small to press."""
    steps = [("← token before", position - 1), ("token after →", position + 1)]
    buttons = (
        f'<button type="button" data-place="{place}"{"" if 1 <= place <= count else " disabled"}>{name}</button>'
        for name, place in steps
    )
    return f'<p class="steps">{" ".join(buttons)}</p>'


def bar(piece: str, probability: float, *, drawn: bool, rival: tuple[int, int] | None = None) -> str:
    """One row of `bars`; as a `rival` its token is a button."""
    mark = '<span class="mark">drawn</span>' if drawn else ""
    token = f"<code>{escape(visible(piece))}</code>"
    if rival:
        token = f'<button type="button" data-rival="{list(rival)}" title="Go on from here with this token">{token}</button>'
    return (
        f'<tr class="{"drawn" if drawn else "other"}"><th scope="row">{token}{mark}</th>'
        f'<td class="track"><span style="width:{100 * probability:.2f}%"></span></td>'
        f'<td class="amount">{percent(probability)}</td></tr>'
    )


def status(transcript: Transcript | None, *, problem: str | None = None) -> str:
    """The line of numbers of a text, and what became of it; `problem`: what went wrong before there was one."""
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


def status_of_turn(last: Chunk | None, *, doing: str = "", problem: str | None = None) -> str:
    """The same for an answer of a chat: its last chunk, or what is being done."""
    if problem or last is None or last.stats is None:
        return status_line([], problem or doing, is_problem=bool(problem))
    stats = last.stats
    facts = [
        ("tokens", f"{stats.generated_tokens:,}"),
        ("tokens/s", f"{stats.decode_tokens_per_second:,.1f}"),
        ("first token", f"{1000 * stats.first_token_seconds:,.0f} ms"),
        from_cache(stats),
    ]
    return status_line(facts, finished(last.finish_reason or ""))


def from_cache(stats: Stats) -> Fact:
    """How much of the prompt did not have to be read."""
    return "from cache", f"{stats.reused_tokens:,} of {stats.prompt_tokens:,}"


def status_line(facts: Sequence[Fact], said: str, *, is_problem: bool = False) -> str:
    """Names with their values, and a word."""
    items = "".join(f"<span>{name} <b>{value}</b></span>" for name, value in facts)
    role = ' role="alert"' if is_problem else ""  # Spoken by a screen reader; numbers that change all the time should not be.
    return f'<div class="status">{items}<span class="state"{role}>{escape(said)}</span></div>'


def state(transcript: Transcript | None) -> str:
    """What the generation is doing, or how it ended, in words."""
    if transcript is None:
        return ""
    if transcript.finish_reason is None:
        return "writing ..." if transcript.tokens else "reading the prompt ..."
    return finished(transcript.finish_reason)


def finished(reason: str) -> str:
    """How a text ended, for a person too."""
    return f"finished: {reason} ({ENDINGS[reason]})" if reason in ENDINGS else f"finished: {reason}"


def masthead(name: str, model: Model) -> str:
    """The title of the page and what runs behind it; `name`: what a person picks the model by."""
    manifest = model.manifest
    megabytes = sum(record.size for record in manifest.files.values()) / 1e6
    chips = [
        ("model", name),
        ("precision", manifest.precision),
        ("device", model.device),
        ("size", f"{megabytes:,.1f} MB"),
        ("context", f"{manifest.geometry.context_length:,} tokens"),
    ]
    items = "".join(f"<li>{name} <b>{escape(value)}</b></li>" for name, value in chips)
    return title(f"<ul>{items}</ul>")


def cannot_load(name: str, reason: str) -> str:
    """The same for a package that is none."""
    return title(f'<p class="problem" role="alert"><b>{escape(name)}</b> cannot be used: {escape(reason)}</p>')


def title(below: str) -> str:
    """The page's name and what it is about."""
    return (
        '<header class="masthead"><h1>onnx-textgen</h1>'
        f"<p>A language model writes, token by token, on this machine: ONNX Runtime, no PyTorch.</p>{below}</header>"
    )
