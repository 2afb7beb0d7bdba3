"""What `-h` shows, made of docstrings: the examples first, since they are what most people look for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

MARK = "Try:"
VERBATIM = "\b\n"
"""The terminal library's mark for lines that stay as they are."""


def help_of(command: Callable[..., Any]) -> str:
    """A command's docstring with its examples, which begin at `Try:`, before the rest."""
    description, mark, examples = inspect.cleandoc(command.__doc__ or "").partition(MARK)
    return f"{VERBATIM}{mark}{examples}\n\n{description}" if mark else description


def summary_of(command: Callable[..., Any]) -> str:
    """The first line of a command's docstring, for the list of commands."""
    return inspect.cleandoc(command.__doc__ or "").partition("\n")[0]
