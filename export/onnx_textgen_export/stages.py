"""Prepares a process that exports, and prints the stages of the export."""

from __future__ import annotations

import logging
import signal
import sys
import time

from onnx_textgen.cli.terminal import screen


class Stages:
    """Prints each stage and its duration on stderr.

    A name with a colon is a message without a duration; the name of the current stage, a comma and more is a step of it.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.started = time.perf_counter()

    def begin(self, name: str | None) -> None:
        """End the current stage, and begin the next if there is one."""
        if name is not None and self.name is not None and name.startswith(f"{self.name}, "):
            screen.progress(name)
            return
        now = time.perf_counter()
        if self.name is not None:
            screen.note(f"{self.name:<24} {now - self.started:6.1f} s")
        if name is not None and ":" in name:
            screen.note(name)
            name = None
        self.name, self.started = name, now
        screen.progress("" if name is None else f"{name} ...")


def begin_export() -> Stages:
    """Prepare this process to export: silence transformers' warnings, and let SIGTERM end it without leaving a partial folder."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return Stages()
