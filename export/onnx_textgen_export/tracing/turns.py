"""A lock that runs the exports of one process one after another, whichever threads start them.

An export changes what all threads share: redirected output and logging of the tracer, and an environment variable by which ONNX
Runtime computes experts in float32.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")
TURN = threading.RLock()


def in_turn(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A function that waits until no other thread runs a function with this decorator."""

    @functools.wraps(function)
    def waiting(*given: Given.args, **options: Given.kwargs) -> Result:
        with TURN:
            return function(*given, **options)

    return waiting
