'''What a person types: one line, or several, with a history that outlives the conversation where it can.

Several lines are one text between two lines of `"""`, or while a line ends with a backslash. The history is readline's; it is a
convenience, so nothing that goes wrong with it is ever an error.
'''

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HISTORY_VARIABLE = "ONNX_TEXTGEN_HISTORY"
MOST_LINES = 1000
QUOTES = '"""'


@dataclass(frozen=True, slots=True)
class Entry:
    """What was typed."""

    text: str
    is_literal: bool = False
    """It stood between quotes: text, whatever it begins with."""


def is_interactive() -> bool:
    """Whether a person sits on both ends."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def read_entry() -> Entry:
    """The next line, or lines that belong together; raises `EOFError` at the end of the input."""
    line = read_line("> ").strip()
    if line.startswith(QUOTES):
        return Entry(read_quoted(line.removeprefix(QUOTES)), is_literal=True)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1].removesuffix("\\")
        lines.append(read_line("... ").rstrip())
    return Entry("\n".join(lines))


def read_quoted(first: str) -> str:
    """Lines up to the closing quotes, or the end of the input."""
    lines = [first] if first else []
    while not (lines and lines[-1].rstrip().endswith(QUOTES)):
        try:
            lines.append(read_line("... "))
        except EOFError:
            return "\n".join(lines)
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines if lines[-1] else lines[:-1])


def read_line(prompt: str) -> str:
    """One line, with a prompt where a person sees it."""
    return input(prompt if is_interactive() else "")


@contextlib.contextmanager
def history() -> Iterator[None]:
    """Line editing, and the lines of earlier conversations; only for a person, and only where Python has readline."""
    file = history_file()
    if sys.platform == "win32" or not is_interactive() or file is None:
        yield
        return
    try:
        import readline  # noqa: PLC0415  (absent on Windows, and where Python was built without it)
    except ImportError:
        yield
        return
    readline.set_history_length(MOST_LINES)
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.touch(mode=0o600)
            file.chmod(0o600)  # what was said is nobody else's, also where the file was there before
            readline.write_history_file(file)


def history_file() -> Path | None:
    """Where the history is kept: by the environment variable, which empty means nowhere, else in the user's state folder."""
    if (chosen := os.environ.get(HISTORY_VARIABLE)) is not None:
        return Path(chosen) if chosen else None
    with contextlib.suppress(RuntimeError):  # no home
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "onnx-textgen" / "chat_history"
    return None
