"""A terminal: stdin, stdout and stderr on one pseudo-terminal, and what a person sees on it at the end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import termios
import threading
import time
from collections.abc import Iterator

from rich.cells import cell_len, chop_cells

from support.patient_http import LONGEST_WAIT

COMMAND = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")
STYLES = re.compile(r"\x1b\[[\d;]*m|\x1b\[\?2004[hl]")
"""Commands that change no character: colours, and how pasted text is marked."""


def screen_of(written: str, columns: int) -> list[str]:
    """The rows that a terminal of a width shows after what was written to it, without blanks at their ends."""
    rows, row, column = [[" "] * columns], 0, 0
    place, written = 0, STYLES.sub("", written)
    while place < len(written):
        character, command = written[place], COMMAND.match(written, place)
        place = place + 1 if command is None else command.end()
        if command is not None:
            assert command[2] == "K", f"the terminal knows no command {command[0]!r}"
            first, last = {"": (column, columns), "0": (column, columns), "1": (0, column + 1), "2": (0, columns)}[command[1]]
            rows[row][first:last] = [" "] * (min(last, columns) - min(first, columns))
        elif character == "\r":
            column = 0
        elif character == "\b":
            column = max(0, column - 1)
        elif character == "\n":
            row += 1
        elif character == "\t":
            column = min(columns - 1, column // 8 * 8 + 8)
        else:
            assert character.isprintable(), f"the terminal knows no character {character!r}"
            width = cell_len(character)
            if column + width > columns:  # a full row is left with the next character, not before
                row, column = row + 1, 0
            rows += [[" "] * columns for _ in range(row + 1 - len(rows))]
            if width:
                rows[row][column : column + width] = [character, *[""] * (width - 1)]
            elif column:
                rows[row][column - 1] += character
            column += width
        rows += [[" "] * columns for _ in range(row + 1 - len(rows))]
    shown = ["".join(cells).rstrip() for cells in rows]
    while shown and not shown[-1]:
        shown.pop()
    return shown


def broken(line: str, room: int) -> list[str]:
    """A line in rows: a word that does not fit begins the next one, also a wide character; only a word longer than a row breaks."""
    rows = [""]
    for part in re.findall(r" +|[\u3000-\U0001ffff][、。,.]*|[^ \u3000-\U0001ffff]+", line):
        if cell_len(rows[-1] + part) > room and part.strip():
            first, *others = chop_cells(part, room)
            rows += [first, *others] if rows[-1] else []
            rows = rows if len(rows) > 1 or rows[-1] else [first, *others]
        else:
            rows[-1] += part
    return [row.rstrip() for row in rows]


class PseudoTerminal:
    """One terminal of a width; `typed` is what a person types, which the terminal shows as it is typed."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.person, self.program = os.openpty()
        fcntl.ioctl(self.program, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        modes = termios.tcgetattr(self.program)
        modes[3] |= termios.NOFLSH  # or Ctrl-C would remove what the program has written and the reader has not read yet
        termios.tcsetattr(self.program, termios.TCSANOW, modes)
        self.written = b""
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        """Take what is written, until the program has closed its end."""
        with contextlib.suppress(OSError):  # how Linux says that no program has the terminal
            while part := os.read(self.person, 65536):
                self.written += part

    def type(self, text: str) -> None:
        """Type a text."""
        os.write(self.person, text.encode())

    def interrupt(self) -> None:
        """Type Ctrl-C, and wait until the terminal shows it."""
        seen, latest = self.written.count(b"^C"), time.monotonic() + LONGEST_WAIT
        self.type("\x03")
        while self.written.count(b"^C") == seen:
            assert time.monotonic() < latest, "the terminal does not show Ctrl-C"
            time.sleep(0.001)

    @contextlib.contextmanager
    def streams(self) -> Iterator[tuple[object, object, object]]:
        """Stdin, stdout and stderr of a program; the terminal is closed with them."""
        with (
            os.fdopen(os.dup(self.program), encoding="utf-8") as stdin,
            os.fdopen(os.dup(self.program), "w", encoding="utf-8") as stdout,
            os.fdopen(self.program, "w", encoding="utf-8") as stderr,
        ):
            yield stdin, stdout, stderr

    def rows(self) -> list[str]:
        """What a person sees at the end, once the streams are closed."""
        self.reader.join()
        os.close(self.person)
        return screen_of(self.written.decode(), self.columns)
