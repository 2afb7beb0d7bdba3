"""Runs long work in a thread, so that the generator that waits for it can be closed."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Generator
from typing import TypeVar

Result = TypeVar("Result")
Frame = TypeVar("Frame")
POLL_SECONDS = 0.1


def in_background(
    work: Callable[[], Result], frame: Callable[[], Frame], stop: Callable[[], None] = lambda: None
) -> Generator[Frame, None, Result]:
    """Yield `frame()` at intervals until `work` is done; return its result, or raise its error.

    Calls `stop` if the generator is closed earlier. Gradio can close a generator only while it yields.
    """
    pool = concurrent.futures.ThreadPoolExecutor(1)
    try:
        future = pool.submit(work)
        while True:
            try:
                return future.result(timeout=POLL_SECONDS)
            except concurrent.futures.TimeoutError:
                if future.done():  # in the meantime; the work itself may also raise TimeoutError
                    return future.result()
                yield frame()
    finally:
        stop()
        pool.shutdown(wait=False)
