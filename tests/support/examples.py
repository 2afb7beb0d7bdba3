"""How many examples a property is tried on: few in an ordinary run, many in `python -m tests deep`."""

from typing import Any

from hypothesis import settings

QUICK, DEEP = "quick", "deep"
"""Profiles of hypothesis."""
FEW, TIMES = 25, 20
"""Examples where a test names no number; how many times as many examples a deep run tries."""


def register_profiles() -> None:
    """Make both profiles known, and the quick one the default; `--hypothesis-profile deep` takes the other."""
    settings.register_profile(QUICK, deadline=None, max_examples=FEW)  # a busy machine is no failure
    settings.register_profile(DEEP, deadline=None, max_examples=FEW * TIMES)
    settings.load_profile(QUICK)


def examples(count: int, **more: Any) -> settings:
    """Try so many examples in an ordinary run; `more` are further settings of hypothesis."""
    return settings(max_examples=count * settings.default.max_examples // FEW, **more)
