"""What a program is doing, in the last row of the terminal: its name, a bar where it says `3 of 8`, and the time it has taken."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

TICK_SECONDS = 1.0
BAR_COLUMNS = 20
SHARE = re.compile(r"\b(\d[\d,]*) of (\d[\d,]*)\b")


class Progress:
    """Draws the row when it changes, and each second, so that a person sees that the program still works."""

    def __init__(self, draw: Callable[[str], None]) -> None:
        """`draw` replaces the row; it gets an empty text to remove it."""
        self.draw = draw
        self.text, self.since = "", 0.0
        self.lock = threading.RLock()  # the handler of Ctrl-C may remove the row in a thread that draws it
        self.ticker: threading.Thread | None = None

    def show(self, text: str) -> None:
        """Show a text; the time is counted from the first one after a removal."""
        with self.lock:
            if not self.text:
                self.since = time.monotonic()
            self.text = text
            self.draw(self.line())
            if self.ticker is None:
                self.ticker = threading.Thread(target=self.tick, daemon=True)
                self.ticker.start()

    def remove(self) -> None:
        """Remove the row, if it is shown."""
        with self.lock:
            if self.text:
                self.text = ""
                self.draw("")

    def tick(self) -> None:
        """Draw the row each second while it is shown."""
        while True:
            time.sleep(TICK_SECONDS)
            with self.lock:
                if not self.text:
                    self.ticker = None
                    return
                self.draw(self.line())

    def line(self) -> str:
        """The row: `prompt: 400 of 1,000 tokens  ████████░░░░░░░░░░░░  40 %  3 s`."""
        seconds = int(time.monotonic() - self.since)
        return "  ".join([self.text, *bars(self.text), *([in_words(seconds)] if seconds >= TICK_SECONDS else [])])


def bars(text: str) -> list[str]:
    """The share that a text says, if it says one, as a bar and a number.

    >>> bars("round 2 of 8")
    ['█████░░░░░░░░░░░░░░░  25 %']
    """
    done, total = (int(number.replace(",", "")) for number in found.groups()) if (found := SHARE.search(text)) else (0, 0)
    if total == 0:
        return []
    full = min(BAR_COLUMNS, done * BAR_COLUMNS // total)
    return [f"{'█' * full}{'░' * (BAR_COLUMNS - full)} {100 * done // total:3} %"]


def in_words(seconds: int) -> str:
    """A time.

    >>> in_words(7), in_words(125)
    ('7 s', '2 min 5 s')
    """
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60} s"
