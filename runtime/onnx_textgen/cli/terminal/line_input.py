'''Reads what a person types, a line or a text of several lines, and keeps a history for later sessions.

Lines are one text if they are between two `"""`, or if all but the last end with a backslash. The history is readline's; it is
optional, so a failure to read or write it is never an error.
'''

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import PromptError
from ...files.user_folders import expanded
from . import screen
from .word_wrap import fold

HISTORY_VARIABLE = "ONNX_TEXTGEN_HISTORY"
MOST_LINES = 1000
QUOTES = '"""'


@dataclass(frozen=True, slots=True)
class Entry:
    """A text that was typed."""

    text: str
    is_literal: bool = False
    """Whether it was between quotes, so that it is a text even if it begins with a slash."""


def is_interactive() -> bool:
    """Return whether both stdin and stdout are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def read_entry() -> Entry:
    """Read the next line, or the next lines that are one text; raises `EOFError` at the end of the input."""
    line = read_line("> ").strip()
    if line.startswith(QUOTES):
        return Entry(read_quoted(line.removeprefix(QUOTES)), is_literal=True)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1].removesuffix("\\")
        lines.append(read_line("... ").rstrip())
    return Entry("\n".join(lines))


def read_quoted(first: str) -> str:
    """Read lines up to the closing quotes, or the end of the input."""
    lines = [first] if first else []
    while not (lines and lines[-1].rstrip().endswith(QUOTES)):
        try:
            lines.append(read_line("... "))
        except EOFError:
            return "\n".join(lines)
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines if lines[-1] else lines[:-1])


def read_line(prompt: str) -> str:
    """Read one line; a terminal shows `prompt`."""
    return as_unicode(input(fold(prompt, screen.width_of(sys.stdout)) if is_interactive() else ""))


def as_unicode(text: str) -> str:
    """A text that was typed, or given as an argument, in a locale without an encoding for it: most terminals send UTF-8 even so.

    Raises `PromptError`.
    """
    try:
        return os.fsencode(text).decode("utf-8") if any("\ud800" <= each <= "\udfff" for each in text) else text
    except ValueError as error:  # of the encoding or of the decoding
        locale = next((f"{name}={os.environ[name]}" for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)), "no LANG")
        raise PromptError(
            f"the text is not UTF-8, and the locale ({locale}, {sys.getfilesystemencoding()}) does not say what it is; "
            "set LC_ALL to the terminal's, such as C.UTF-8"
        ) from error


@contextlib.contextmanager
def history() -> Iterator[None]:
    """Turn on line editing and the history of earlier sessions, on a terminal and if Python has readline."""
    file = history_file()
    if sys.platform == "win32" or not is_interactive() or file is None:
        yield
        return
    try:
        import readline  # noqa: PLC0415  (missing on Windows, and in a Python that was built without it)
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
            file.chmod(0o600)  # no other user may read it, even if the file existed before
            readline.write_history_file(file)


def history_file() -> Path | None:
    """The file of the history: that of the environment variable (None if it is empty), else one in the user's state folder."""
    if (chosen := os.environ.get(HISTORY_VARIABLE)) is not None:
        return Path(chosen) if chosen else None
    return expanded(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "onnx-textgen" / "chat_history"
