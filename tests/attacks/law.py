"""What laws are made of: attacks in a process that may die of one, and the verdict on what came of them.

A law is a test whose name is a sentence. An attack is a function of an empty folder and of what hypothesis chose for it.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

pytest.importorskip("resource", reason="the limits of processor time and memory are those of POSIX")
import resource

import onnx_textgen
from onnx_textgen.cli import run
from onnx_textgen.cli.app import DEBUG_VARIABLE
from onnx_textgen.errors import OnnxTextgenError

Verdict = Literal["refused", "harmless"]
REFUSED: Verdict = "refused"
"""An error of ours in one line, before any harm."""
HARMLESS: Verdict = "harmless"
"""It worked, and gave what it gives without the attack."""
TALLY = Counter[str]()
"""The verdicts on the attacks of the test that runs."""
PACKAGE = Path(__file__).resolve().parents[1] / "packages" / "ort"
MEMORY_BYTES = 4 << 30
"""That an attack may take."""
LONGEST_WAIT = 120
"""Seconds by the clock for one attack: an opened pipe may take for ever and no processor time."""
LONGEST_LINE = 1_000
T = TypeVar("T")


class Violation(AssertionError):  # noqa: N818 - the law's word
    """What a law forbids has happened."""


def count(verdict: Verdict) -> None:
    """Add one to the verdicts on the test that runs."""
    TALLY[verdict] += 1


def judged(attempt: Callable[[], T], is_harmless: Callable[[T], bool] = lambda _: True) -> Verdict:
    """The verdict on an attempt that may be refused, or give what is harmless; raises `Violation` for all else."""
    try:
        found = attempt()
    except OnnxTextgenError as error:
        check_line(str(error))
        return REFUSED
    if not is_harmless(found):
        raise Violation(f"it gave {found!r:.300}")
    return HARMLESS


def refused(attempt: Callable[[], object]) -> Verdict:
    """The verdict on an attempt that must be refused."""
    return judged(attempt, lambda _: False)


def check_line(message: str) -> None:
    """Raise `Violation` for an error that is no short line."""
    if not message or "\n" in message or len(message) > LONGEST_LINE:
        raise Violation(f"the error is no short line: {message!r:.300}")


def check_command(*arguments: str) -> None:
    """Run a command line, which may fail with an error of ours in a line, and with no other."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            code = run(list(arguments))
    except OnnxTextgenError as error:
        check_line(str(error))
    else:
        if code not in (0, 1):
            raise Violation(f"{' '.join(arguments)} ended with {code}")


def open_model(folder: Path) -> onnx_textgen.Model:
    """The model of a folder on one thread."""
    return onnx_textgen.load(folder, threads=1, device="cpu")


def limit(cpu_seconds: int) -> None:
    """Bound the time that this process may take from here on."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(own.ru_utime + own.ru_stime) + cpu_seconds + 1, resource.RLIM_INFINITY))
    signal.alarm(LONGEST_WAIT)


def confined(pipe: Connection) -> None:
    """Try the attacks that come through a pipe, with little memory and no terminal, until the other side has gone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, resource.RLIM_INFINITY))
    os.dup2(os.pipe()[0], 0)  # nothing ever comes from it
    for output in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    os.environ |= {DEBUG_VARIABLE: "1", "COLUMNS": "80"}  # so that a command turns no error into a line that is none of ours
    with contextlib.suppress(EOFError):
        while True:
            attack, arguments, cpu_seconds = pipe.recv()
            limit(cpu_seconds)
            pipe.send(verdict_on(attack, arguments))
            signal.alarm(0)


def verdict_on(attack: Callable[..., Verdict], arguments: tuple[Any, ...]) -> tuple[Verdict | None, str]:
    """The verdict, and what is wrong where there is none."""
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as folder:
        try:
            return attack(Path(folder), *arguments), ""
        except Violation as violation:
            return None, str(violation)
        except BaseException as error:  # noqa: BLE001 - panics of Rust code are no `Exception`; each is what a law forbids
            place = traceback.extract_tb(error.__traceback__)[-1]
            return None, f"{type(error).__name__}: {error!s:.300} ({Path(place.filename).name}:{place.lineno})"


class Cell:
    """A process that tries attacks; another one where the last has died."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start it."""
        self.pipe, other = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=confined, args=[other], daemon=True)
        self.process.start()
        other.close()

    def hold(self, attack: Callable[..., Verdict], *arguments: Any, cpu_seconds: int = 60) -> None:
        """Assert that an attack does what the law allows; one that takes longer is a hang."""
        try:
            self.pipe.send((attack, arguments, cpu_seconds))
            verdict, wrong = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            code = self.process.exitcode or 0
            self.begin()
            raise Violation(f"it ended the process: {signal.Signals(-code).name if code < 0 else code}") from None
        if verdict is None:
            raise Violation(wrong)
        count(verdict)
