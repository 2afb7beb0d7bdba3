"""Work that is long and gives nothing until it is done, so that its caller can still be stopped."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Generator
from typing import TypeVar

Result = TypeVar("Result")
POLL_SECONDS = 0.1


def in_background(work: Callable[[], Result], stop: Callable[[], None] = lambda: None) -> Generator[None, None, Result]:
    """Yield now and then until `work` is done, and return what it gave, or raise what it raised.

    `stop` is called where the generator is closed before: Gradio can close one only while it yields.
    """
    pool = concurrent.futures.ThreadPoolExecutor(1)
    try:
        future = pool.submit(work)
        while True:
            try:
                return future.result(timeout=POLL_SECONDS)
            except concurrent.futures.TimeoutError:
                if future.done():  # meanwhile; what timed out may also be the work itself
                    return future.result()
                yield
    finally:
        stop()
        pool.shutdown(wait=False)
