"""Which of a test's cases run when: see the marks of pytest in pyproject.toml."""

from collections.abc import Iterable
from typing import Any

import pytest


def by_cost(quick: Iterable[Any], slow: Iterable[Any] = (), rare: Iterable[Any] = ()) -> list[Any]:
    """The cases of a parameter, those of `slow` and `rare` marked so."""
    marked = [(slow, pytest.mark.slow), (rare, pytest.mark.rare)]
    return [*quick, *(pytest.param(each, marks=mark) for cases, mark in marked for each in cases)]
