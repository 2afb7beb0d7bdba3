"""What a program is doing, in the last row of the terminal: its name, a bar where its share is known, and the time it has taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

TICK_SECONDS = 1.0
BAR_COLUMNS = 20


class Progress:
    """Draws the row when it changes, and each second, so that a person sees that the program still works."""

    def __init__(self, draw: Callable[[str], None]) -> None:
        """`draw` replaces the row; it gets an empty text to remove it."""
        self.draw = draw
        self.text, self.share, self.since = "", None, 0.0
        self.lock = threading.RLock()  # the handler of Ctrl-C may remove the row in a thread that draws it
        self.ticker: threading.Thread | None = None

    def show(self, text: str, share: float | None = None) -> None:
        """Show a text, and a bar for the `share` of it that is done (0 to 1); the time is counted from the first text."""
        with self.lock:
            if not self.text:
                self.since = time.monotonic()
            self.text, self.share = text, share
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
        """The row: `build smollm2 ... ████████░░░░░░░░░░░░  40 %  3 s`."""
        seconds = int(time.monotonic() - self.since)
        return "  ".join(
            [self.text, *([] if self.share is None else [bar(self.share)]), *([in_words(seconds)] if seconds >= TICK_SECONDS else [])]
        )


def bar(share: float) -> str:
    """A share as a bar and a number.

    >>> bar(0.25)
    '█████░░░░░░░░░░░░░░░  25 %'
    """
    full = min(BAR_COLUMNS, int(share * BAR_COLUMNS))
    return f"{'█' * full}{'░' * (BAR_COLUMNS - full)} {share:4.0%}".replace("%", " %")


def in_words(seconds: int) -> str:
    """A time.

    >>> in_words(7), in_words(125)
    ('7 s', '2 min 5 s')
    """
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60} s"
