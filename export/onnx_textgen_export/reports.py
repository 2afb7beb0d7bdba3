"""What an export tells as it works: its stages, and the steps of each."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str], None]
"""Is told each stage as it begins; the name of a stage, a comma and more is a step of it."""


def begin(stage: str, report: Report) -> Report:
    """Report a stage as it begins; returns the function that reports its steps."""
    report(stage)
    return lambda step: report(f"{stage}, {step}")
