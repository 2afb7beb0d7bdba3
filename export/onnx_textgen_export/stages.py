"""Prepares a process that exports, and prints the stages of the export."""

from __future__ import annotations

import logging
import signal
import sys
import time

import typer


class Stages:
    """Prints each stage and its duration on stderr; a stage name with a colon is a message without a duration."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.started = time.perf_counter()

    def begin(self, name: str | None) -> None:
        """End the current stage, and begin the next if there is one."""
        now, on_terminal = time.perf_counter(), sys.stderr.isatty()
        if self.name is not None:
            start = "\r" if on_terminal else ""  # overwrites the line printed at its start
            typer.echo(f"{start}{self.name:<24} {now - self.started:6.1f} s", err=True)
        if name is not None and ":" in name:
            typer.echo(name, err=True)
            name = None
        self.name, self.started = name, now
        if name is not None and on_terminal:
            typer.echo(f"{name} ...", nl=False, err=True)


def begin_export() -> Stages:
    """Prepare this process to export: silence transformers' warnings, and let SIGTERM end it without leaving a partial folder."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return Stages()
