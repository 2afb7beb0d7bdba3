"""Exports of one process take turns, whichever threads ask for them.

While one is at work things are changed that all threads share: where the tracer's words go, what is logged, and a variable of the
environment by which ONNX Runtime computes experts in float32.
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
    """The function, which waits until no other thread is within one that is made so."""

    @functools.wraps(function)
    def waiting(*given: Given.args, **options: Given.kwargs) -> Result:
        with TURN:
            return function(*given, **options)

    return waiting
