"""Calls for asyncio: each runs in a thread of its own, where it waits most of the time, and the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TypeVar

from ..cancellation import Cancellation

T = TypeVar("T")
MOST_UNTAKEN = 64
"""Items that are made ahead of who takes them."""
LONGEST_WAIT = 1.0
"""Seconds after which a thread that waits looks whether there still is an event loop."""


async def iterate(items: Callable[[], Iterable[T]], cancel: Cancellation) -> AsyncGenerator[T, None]:
    """The items that a thread makes, as they come; it rests where `MOST_UNTAKEN` of them wait to be taken.

    `cancel`, which nobody else holds, is cancelled when nobody takes them any more.
    """
    loop, made = asyncio.get_running_loop(), asyncio.Queue[tuple[T | None, BaseException | None, bool]]()
    room, is_left = threading.Semaphore(MOST_UNTAKEN), threading.Event()

    def tell(item: T | None = None, error: BaseException | None = None, *, is_end: bool = False) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
            loop.call_soon_threadsafe(made.put_nowait, (item, error, is_end))

    def has_room() -> bool:
        """Wait for it; False where nobody takes the items any more."""
        while not room.acquire(timeout=LONGEST_WAIT):
            if loop.is_closed():
                return False
        return not is_left.is_set()

    def work() -> None:
        try:
            for item in items():
                if not has_room():
                    return  # which closes a generator
                tell(item)
        except BaseException as error:  # noqa: BLE001 - raised again where the items are taken
            tell(error=error, is_end=True)
        else:
            tell(is_end=True)

    threading.Thread(target=work, name="onnx-textgen", daemon=True).start()
    try:
        while True:
            item, error, is_end = await made.get()
            room.release()
            if error is not None:
                raise error
            if is_end:
                return
            yield item  # type: ignore[misc]  # an item, as this is neither an error nor the end
    finally:
        cancel.cancel()
        is_left.set()
        room.release()


async def call(function: Callable[[], T], cancel: Cancellation) -> T:
    """What a function returns, called in a thread; `cancel`, which nobody else holds, is cancelled when the waiting task is."""
    async with contextlib.aclosing(iterate(lambda: [function()], cancel)) as results:
        async for result in results:
            return result
    raise AssertionError("a function returns something or raises")
