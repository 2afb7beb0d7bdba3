"""Makes the texts of `-h` from docstrings, with the examples first, because most people look for those."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

MARK = "Try:"
VERBATIM = "\b\n"
"""typer's mark for lines that are not wrapped again."""


def help_of(command: Callable[..., Any]) -> str:
    """A command's docstring with the examples, which begin at `Try:`, moved to the beginning."""
    description, mark, examples = inspect.cleandoc(command.__doc__ or "").partition(MARK)
    return f"{VERBATIM}{mark}{examples}\n\n{description}" if mark else description


def summary_of(command: Callable[..., Any]) -> str:
    """The first line of a command's docstring, for the list of commands."""
    return inspect.cleandoc(command.__doc__ or "").partition("\n")[0]
