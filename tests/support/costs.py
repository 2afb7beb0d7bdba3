"""Which of a test's cases run when: see the marks of pytest in pyproject.toml."""

from collections.abc import Iterable
from typing import Any

import pytest


def by_cost(quick: Iterable[Any], slow: Iterable[Any] = (), rare: Iterable[Any] = ()) -> list[Any]:
    """The cases of a parameter, those of `slow` and `rare` marked so."""
    marked = [(slow, pytest.mark.slow), (rare, pytest.mark.rare)]
    return [*quick, *(as_case(each, mark) for cases, mark in marked for each in cases)]


def as_case(case: Any, mark: pytest.MarkDecorator) -> Any:
    """A marked case, of one parameter or of several."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)
