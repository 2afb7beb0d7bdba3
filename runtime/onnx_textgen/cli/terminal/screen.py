"""Writes the output for people and programs: streamed text, the stats line, JSON. Tables: see `tables`."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from ... import sizes
from ...answers.visible_text import CONTROLS, DIRECTION
from .progress import Progress
from .word_wrap import WordWrap, fold

if TYPE_CHECKING:
    from rich.console import Console

    from ...inference.prefill import Progress as Prefill
    from ...results import Alternative, Chunk, Generation, Stats

CANCELLED = "cancelled"
size = sizes.in_words

# A prompt can make a model generate terminal commands (ESC ...); they are replaced by U+FFFD, so that the terminal ignores them.
CONTROL_CHARACTERS = dict.fromkeys(CONTROLS, "\ufffd")
IN_LINES = dict.fromkeys((*CONTROLS, *DIRECTION), "\ufffd")
"""For lines that may have names in them; in a model's text marks of direction have their use."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The result of one generation or stream."""

    text: str
    token_ids: list[int]
    """The new ids only."""
    finish_reason: str
    """`cancelled` after Ctrl-C."""
    stats: Stats | None
    """None if the stream was ended before its last chunk."""
    follows_rule: bool | None = None
    """Whether the text follows its schema, expression or grammar to the end; None without a constraint."""
    logprobs: tuple[float, ...] = ()
    alternatives: tuple[tuple[Alternative, ...], ...] = ()
    sequences: tuple[Answer, ...] = ()
    """All texts, best first, if the call asked for more than one."""

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints: always the first four values, the others only if the call asked for them."""
        values: dict[str, Any] = {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "stats": self.stats,
        }
        more = {
            "follows_rule": self.follows_rule,
            "logprobs": self.logprobs or None,
            "alternatives": self.alternatives if any(self.alternatives) else None,
            "sequences": [one.as_json() for one in self.sequences] or None,
        }
        return values | {name: value for name, value in more.items() if value is not None}


def answer_of(made: Generation) -> Answer:
    """The answer of a finished generation."""
    return Answer(
        made.text,
        list(made.token_ids),
        made.finish_reason,
        made.stats,
        made.follows_rule,
        made.logprobs,
        made.alternatives,
        tuple(answer_of(one) for one in made.sequences if one.sequences == ()),
    )


ROW = WordWrap()
"""The row of the terminal with the cursor; stdout and stderr, where both are terminals, are taken for one."""
PLAIN, DIM = ("", ""), ("\033[2m", "\033[0m")
"""What begins and ends a style."""


def begin_line() -> None:
    """Make the row ready for lines on stderr: progress is removed, and text gets its row for itself."""
    progress("")
    if ROW.column and sys.stderr.isatty():
        typer.echo(err=True)
        ROW.feed("\n", 0)


def leave_row() -> None:
    """End the row before the program ends, so that the shell's prompt gets its own; what it was doing stays to be read."""
    if (is_shown := bool(PROGRESS.text)) or (ROW.column and sys.stdout.isatty()):
        PROGRESS.text = ""
        typer.echo(err=is_shown)


def write(text: str, out: TextIO, style: tuple[str, str] = PLAIN) -> None:
    """Write a model's text to `out`; on a terminal, broken between words and without control characters."""
    if not text:
        return
    if out.isatty():
        progress("")
        row = ROW if out in (sys.stdout, sys.stderr) else WordWrap()
        shown = row.feed(text.translate(CONTROL_CHARACTERS), width_of(out), style)
    else:
        shown = text.join(style)
    typer.echo(shown, file=out, nl=False, color=True)  # typer translates the sequences for a Windows console


def write_dim(text: str) -> None:
    """Write a text of less importance to stdout: dim, if stdout has colours."""
    write(text, sys.stdout, DIM if has_colours(sys.stdout) else PLAIN)


def writer(out: TextIO) -> Callable[[Chunk], None]:
    """Make a function that writes the text of chunks to `out`."""
    return lambda chunk: write(chunk.text, out)


def collect(chunks: Iterator[Chunk], show: Callable[[Chunk], None] | None) -> Answer:
    """Show a stream's chunks as they come and return the whole text; Ctrl-C ends the stream and keeps the text so far."""
    made: list[Chunk] = []
    try:
        for chunk in chunks:
            made.append(chunk)
            if show is not None:
                show(chunk)
    except KeyboardInterrupt:
        pass
    finally:
        if close := getattr(chunks, "close", None):  # of a generator, where it cancels the run and releases the cache
            close()
    last = made[-1] if made else None
    return Answer(
        text="".join(chunk.text for chunk in made),
        token_ids=[token_id for chunk in made for token_id in chunk.token_ids],
        finish_reason=(last.finish_reason if last else None) or CANCELLED,
        stats=last.stats if last else None,
        follows_rule=last.follows_rule if last else None,
        logprobs=tuple(logprob for chunk in made for logprob in chunk.logprobs),
        alternatives=tuple(alternatives for chunk in made for alternatives in chunk.alternatives),
    )


def stats_line(answer: Answer, *, is_drawn: bool) -> str:
    """`prompt 42 tokens 310 tok/s | text 128 tokens 61.2 tok/s | first token 140 ms | seed 7 | stop: length`.

    The seed reproduces the text; a text that was not drawn (`is_drawn`) has none.
    """
    if answer.stats is None:
        return f"text {len(answer.token_ids)} tokens | stop: {answer.finish_reason}"
    stats = answer.stats
    kept = f" ({stats.reused_tokens} kept)" if stats.reused_tokens else ""
    seed = f" | seed {stats.seed}" if is_drawn else ""
    return (
        f"prompt {stats.prompt_tokens} tokens{kept} {rate(stats.prefill_tokens_per_second)}"
        f" | text {stats.generated_tokens} tokens {rate(stats.decode_tokens_per_second)}"
        f" | first token {stats.first_token_seconds * 1000:.0f} ms{seed} | stop: {answer.finish_reason}"
    )


def rate(tokens_per_second: float) -> str:
    """Tokens per second with about three digits."""
    return f"{tokens_per_second:.0f} tok/s" if tokens_per_second >= 100 else f"{tokens_per_second:.1f} tok/s"


def progress(text: str) -> None:
    """Replace the progress on stderr, if that is a terminal; an empty text removes it. In a row with text none is shown."""
    if not text:
        PROGRESS.remove()
    elif is_terminal(sys.stderr) and not ROW.column:
        PROGRESS.show(text)


def draw_progress(text: str) -> None:
    """Replace the row of the progress."""
    # typer translates the sequence for a Windows console
    typer.echo(f"\r\033[K{fitted(text.translate(CONTROL_CHARACTERS))}", nl=False, err=True, color=True)


PROGRESS = Progress(draw_progress)


def fitted(text: str) -> str:
    """The beginning of a text that fits into one row of the terminal: a second row would stay when the progress is replaced."""
    columns = width_of(sys.stderr)
    if not columns or len(text) * 2 < columns:  # no character takes more than two columns
        return text
    from rich.cells import set_cell_size  # noqa: PLC0415  (see `make_console`)

    return set_cell_size(text, columns - 1).rstrip()


def width_of(stream: TextIO) -> int:
    """The width of the terminal that a stream is; 0 for another stream, or if the width is not known."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):  # a stream without a number, or a terminal without a size
        return 0


def prefill_progress(fed: Prefill) -> None:
    """Show how much of a long prompt the model has read."""
    progress(f"prompt: {fed.done:,} of {fed.total:,} tokens" if fed.done < fed.total else "")


def quoted(piece: str) -> str:
    """A token's text with its spaces and control characters visible: `' Paris'`."""
    return repr(piece)


def say(text: str) -> None:
    """Write a line to stdout, like `note`."""
    write_line(text, sys.stdout)


def note(text: str) -> None:
    """Write a line to stderr, without control characters, since parts of it may come from a model, its folder or a library."""
    write_line(text, sys.stderr)


def note_dim(text: str) -> None:
    """Write a line of less importance to stderr: dim, if stderr has colours."""
    write_line(text, sys.stderr, DIM if has_colours(sys.stderr) else PLAIN)


def write_line(text: str, out: TextIO, style: tuple[str, str] = PLAIN) -> None:
    """Write a line in its own row; on a terminal, broken between words."""
    begin_line()
    typer.echo(fold(text.translate(IN_LINES), width_of(out)).join(style), file=out, color=True)


def choose_colours(wanted: str) -> None:
    """Set the variables that Rich and other libraries read too: colour `always` or `never`; `auto` does not change them."""
    if wanted == "never":
        os.environ["NO_COLOR"] = "1"
    elif wanted == "always":
        os.environ.pop("NO_COLOR", None)
        os.environ["FORCE_COLOR"] = "1"


def has_colours(stream: TextIO) -> bool:
    """Return whether to colour a stream: `NO_COLOR` is not set, and `FORCE_COLOR` is or it is a terminal with colours.

    Rich has the same rule for its tables. An empty variable counts as not set.
    """
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal(stream)


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that understands control sequences."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def print_json(value: object) -> None:
    """Write one JSON object to stdout."""
    progress("")
    typer.echo(json.dumps(value, ensure_ascii=False, default=as_json))


def as_json(value: Any) -> dict[str, Any] | str:  # noqa: ANN401 - any value that JSON has no form for
    """Convert a record to an object, a path to a text."""
    return str(value) if isinstance(value, Path) else dataclasses.asdict(value)


def make_console(*, stderr: bool = False, force_terminal: bool | None = None) -> Console:
    """Make a Rich console on stdout or stderr that prints text literally, because a model's text may look like markup."""
    from rich.console import Console  # noqa: PLC0415  (takes 40 ms, which streaming text does not need)

    return Console(highlight=False, markup=False, emoji=False, stderr=stderr, force_terminal=force_terminal)
