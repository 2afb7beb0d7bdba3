"""How a transcript looks: coloured tokens, a table of them, the bars of the next-token distribution, a line of numbers.

Pure functions from data to what a Gradio component shows. Where that is HTML, every text that came from a model, a prompt or a
package is escaped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from .transcript import Token, Transcript

if TYPE_CHECKING:
    from onnx_textgen import Chunk, Model, Stats

# From a likely token to a surprising one; the names are the page's legend. Blue to orange: apart for every kind of colour vision.
BANDS = {"80 % or more": 0.8, "40 to 80 %": 0.4, "10 to 40 %": 0.1, "2 to 10 %": 0.02, "below 2 %": 0.0}
BAND_COLORS = dict(zip(BANDS, ("#2166ac", "#67a9cf", "#a3a3a3", "#f4a460", "#d6541c"), strict=True))

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

    >>> visible(" cat"), visible("end.\n")
    ('␣cat', 'end.⏎')
    """
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥"}
    shown = (signs.get(each, each if each.isprintable() else ascii(each)[1:-1]) for each in piece)
    return "".join(shown) or "(empty)"


def band(probability: float) -> str:
    """The name of the band a probability falls in.

    >>> band(0.5)
    '40 to 80 %'
    """
    return next(name for name, lowest in BANDS.items() if probability >= lowest)


def spans(tokens: Sequence[Token]) -> list[tuple[str, str]]:
    """The tokens for `gr.HighlightedText`: (text, band)."""
    # A line end alone would be a span without width, so it gets its sign too; and blanks alone have no name to be read out.
    return [(named_if_blank(token.piece).replace("\n", "⏎\n"), band(token.probability)) for token in tokens]


def named_if_blank(piece: str) -> str:
    r"""A piece that has nothing to see made visible.

    >>> named_if_blank(" "), named_if_blank(" cat"), named_if_blank("\n")
    ('␣', ' cat', '\n')
    """
    if "\n" in piece or any(character.isprintable() and not character.isspace() for character in piece):
        return piece
    return visible(piece)


def rows(tokens: Sequence[Token]) -> list[list[str | int]]:
    """The tokens for `gr.Dataframe`, under `TABLE_HEADERS`."""
    return [[position, visible(token.piece), percent(token.probability)] for position, token in enumerate(tokens, 1)]


# Each bar that may be gone on from is a button; which one was pressed reaches Python as `SelectData.index`.
CHOICE_EVENTS = """element.addEventListener("click", (event) => {
  const chosen = event.target.closest("button[data-place]");
  if (chosen) trigger("select", { index: JSON.parse(chosen.dataset.place), value: "" });
});"""


def bars(tokens: Sequence[Token], position: int, *, choosable: bool = False) -> str:
    """The distribution at a position (1 = first generated token) as bars, the drawn token marked.

    `choosable`: the other tokens are buttons, to go on from them; they are not while a text is still being written.
    """
    if not 1 <= position <= len(tokens):
        return bars_panel(
            "Before each token the model gives every token it knows a probability. The ten likeliest appear here.", ""
        )
    token = tokens[position - 1]
    lines = [
        bar(
            rival.piece,
            rival.probability,
            drawn=rank == token.rank,
            place=(position, rank) if choosable and rank != token.rank else None,
        )
        for rank, rival in enumerate(token.rivals)
    ]
    if token.rank is None:
        lines.append(bar(token.piece, token.probability, drawn=True))
    note = f"What the model expected as token {position}, before temperature and cuts."
    if choosable:
        note += " Choose another to go on from it."
    steps = step_buttons(position, len(tokens)) if choosable else ""
    return bars_panel(note, f"{steps}<table><tbody>{''.join(lines)}</tbody></table>")


def step_buttons(position: int, count: int) -> str:
    """To the token before and the one after, where the coloured ones are too small to press."""
    before, after = max(1, position - 1), min(count, position + 1)
    return (
        f'<p class="steps"><button type="button" data-place="[{before},null]">← token before</button> '
        f'<button type="button" data-place="[{after},null]">token after →</button></p>'
    )


def bars_panel(note: str, table: str) -> str:
    """The frame around the bars, of one height whether they are there or not."""
    return f'<section class="bars"><h2>Next token</h2><p>{note}</p>{table}</section>'


def bar(piece: str, probability: float, *, drawn: bool, place: tuple[int, int] | None = None) -> str:
    """One row of `bars`; with a `place` its token is a button."""
    mark = '<span class="mark">drawn</span>' if drawn else ""
    token = f"<code>{escape(visible(piece))}</code>"
    if place:
        token = (
            f'<button type="button" data-place="[{place[0]},{place[1]}]" title="Go on from here with this token">{token}</button>'
        )
    return (
        f'<tr class="{"drawn" if drawn else "other"}"><th scope="row">{token}{mark}</th>'
        f'<td class="track"><span style="width:{100 * probability:.2f}%"></span></td>'
        f'<td class="amount">{percent(probability)}</td></tr>'
    )


def status(transcript: Transcript | None, *, problem: str | None = None, stopped: bool = False) -> str:
    """The line of numbers of a text, and what became of it."""
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
    return status_line(facts, state(transcript, problem, stopped), is_problem=bool(problem))


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


def state(transcript: Transcript | None, problem: str | None, stopped: bool) -> str:
    """What the generation is doing, or how it ended, in words."""
    if problem:
        return problem
    if transcript is None:
        return "ready"
    reason = transcript.finish_reason or ("cancelled" if stopped else None)
    if reason is None:
        return "writing ..." if transcript.tokens else "reading the prompt ..."
    return finished(reason)


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
