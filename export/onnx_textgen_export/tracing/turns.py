"""A lock that runs the exports of one process one after another, whichever threads start them.

An export changes what all threads share: redirected output and logging of the tracer, an environment variable by which ONNX
Runtime computes experts in float32, and PyTorch's number of threads where a container gives less processor time than cores.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import torch

from onnx_textgen.machine_limits import threads_within_limits

Given = ParamSpec("Given")
Result = TypeVar("Result")
TURN = threading.RLock()


@contextlib.contextmanager
def within_limits() -> Iterator[None]:
    """Have PyTorch compute with no more threads than this process gets processor time for."""
    before, most = torch.get_num_threads(), threads_within_limits()
    if most is None or most >= before:
        yield
        return
    torch.set_num_threads(most)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_turn(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A function that waits until no other thread runs a function with this decorator."""

    @functools.wraps(function)
    def waiting(*given: Given.args, **options: Given.kwargs) -> Result:
        with TURN, within_limits():
            return function(*given, **options)

    return waiting
