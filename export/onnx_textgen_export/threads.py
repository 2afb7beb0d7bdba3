"""Runs work on all threads that the machine's limits allow."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import TypeVar

from onnx_textgen.machine_limits import threads_within_limits, usable_cores

Item = TypeVar("Item")


def for_each(items: Sequence[Item], work: Callable[[Item], None]) -> None:
    """Call `work` for each item, in threads if there is more than one; raises its first exception."""
    if len(items) < 2:
        for item in items:
            work(item)
        return
    with concurrent.futures.ThreadPoolExecutor(threads_within_limits() or usable_cores()) as pool:
        for _ in pool.map(work, items):
            pass
