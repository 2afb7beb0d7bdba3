"""Ctrl-C: ends the process at once while a command starts, and raises `KeyboardInterrupt` where a command has something to undo."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from . import leave


def raise_exceptions() -> None:
    """From now on Ctrl-C raises `KeyboardInterrupt`, in a process that `main` started."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, interrupt)


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Within the context Ctrl-C ends the process at once: for imports of large libraries, which may take it for an error."""
    if signal.getsignal(signal.SIGINT) is not interrupt:
        yield
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)


def interrupt(*_: object) -> None:
    """Handle Ctrl-C where there is something to undo."""
    global came  # noqa: PLW0603  (a process has one Ctrl-C)
    came = True
    raise KeyboardInterrupt


came = False
"""Whether Ctrl-C came; a library that was being imported may have made an `ImportError` of it."""
