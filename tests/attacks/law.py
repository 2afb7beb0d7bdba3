"""A law: a sentence on what holds under one kind of attack, and the cases that try to break it.

A case makes its attack in an empty folder and says what came of it. `trial` runs the cases, in a process that may die of one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from onnx_textgen.errors import OnnxTextgenError

REFUSED: Literal["refused"] = "refused"
"""An error of ours in one line, before any harm."""
HARMLESS: Literal["harmless"] = "harmless"
"""It worked, and gave what it gives without the attack."""
Verdict = Literal["refused", "harmless"]
LONGEST_LINE = 1_000
SEED = 20_250

T = TypeVar("T")


class Violation(Exception):  # noqa: N818 - the law's word
    """What a law forbids has happened."""


@dataclass(frozen=True, slots=True)
class Case:
    """One attack."""

    name: str
    check: Callable[[Path], Verdict]
    """Makes the attack in an empty folder; raises `Violation`, or whatever the attacked code raises and should not."""


@dataclass(frozen=True, slots=True)
class Law:
    """What must hold under one kind of attack."""

    name: str
    """A sentence."""
    cases: Callable[[int, random.Random], Iterable[Case]]
    """So many cases (fewer where there are no more): the same ones for the same number and seed."""
    whole: int
    """Cases of `python -m tests.attacks`."""
    quick: int
    """Cases in pytest."""
    cpu_seconds: int = 20
    """That one case may take; beyond them it counts as a hang."""
    memory_bytes: int = 4 << 30
    """That the process may have of its own."""

    @property
    def module(self) -> str:
        """The last part of the name of the module that makes the cases."""
        return self.cases.__module__.rpartition(".")[2]


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


def spread(items: Sequence[T], count: int) -> Sequence[T]:
    """So many items in even steps; all of them where there are no more."""
    return [items[place * len(items) // count] for place in range(min(count, len(items)))] if count < len(items) else items
