"""From threads to asyncio: calls that run in a thread while the event loop is free, and a mailbox that threads fill."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Generic, TypeVar

from ..cancellation import Cancellation

T = TypeVar("T")
MOST_PENDING = 64
"""The most items that the thread makes before they are taken."""
LONGEST_WAIT = 1.0
"""Seconds after which a waiting thread checks whether the event loop is still open."""


async def iterate(items: Callable[[], Iterable[T]], cancel: Cancellation) -> AsyncGenerator[T, None]:
    """Yield the items that a thread makes, as they come; the thread waits while `MOST_PENDING` of them are not taken.

    `cancel`, for this call alone, is cancelled when the iterator is closed.
    """
    import asyncio  # noqa: PLC0415 - who awaits has imported it; for others its import takes a thirtieth of opening a model

    loop, made = asyncio.get_running_loop(), asyncio.Queue[tuple[T | None, BaseException | None, bool]]()
    room, is_abandoned = threading.Semaphore(MOST_PENDING), threading.Event()

    def send(item: T | None = None, error: BaseException | None = None, *, is_end: bool = False) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(made.put_nowait, (item, error, is_end))

    def wait_for_room() -> bool:
        """Wait until fewer than `MOST_PENDING` items are pending; False if nobody takes them any more."""
        while not room.acquire(timeout=LONGEST_WAIT):
            if loop.is_closed():
                return False
        return not is_abandoned.is_set()

    def produce() -> None:
        try:
            for item in items():
                if not wait_for_room():
                    return  # which closes `items`, if it is a generator
                send(item)
        except BaseException as error:  # noqa: BLE001 - raised again where the items are taken
            send(error=error, is_end=True)
        else:
            send(is_end=True)

    threading.Thread(target=produce, name="onnx-textgen", daemon=True).start()
    try:
        while True:
            item, error, is_end = await made.get()
            room.release()
            if error is not None:
                raise error
            if is_end:
                return
            yield item  # type: ignore[misc]  # neither an error nor the end, so an item
    finally:
        cancel.cancel()
        is_abandoned.set()
        room.release()


async def call(function: Callable[[], T], cancel: Cancellation) -> T:
    """Call a function in a thread and return its result; `cancel`, for this call alone, is cancelled with the waiting task."""
    async with contextlib.aclosing(iterate(lambda: [function()], cancel)) as results:
        async for result in results:
            return result
    raise AssertionError("a function returns or raises")


class Mailbox(Generic[T]):
    """Items that threads put, and a task of the event loop takes: the loop is woken once for all that come before it looks."""

    def __init__(self) -> None:
        """For the running event loop."""
        import asyncio  # noqa: PLC0415 - see `iterate`

        self.loop, self.arrived = asyncio.get_running_loop(), asyncio.Event()
        self.items: deque[T] = deque()
        self.is_announced = False
        """Whether the event loop was told of items, and has not looked."""

    def put(self, items: Iterable[T]) -> None:
        """Add items, from any thread."""
        self.items.extend(items)
        if not self.is_announced:
            self.is_announced = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self.announce)

    def announce(self) -> None:
        """Wake the task; runs in the event loop."""
        self.is_announced = False
        self.arrived.set()

    async def take(self) -> T:
        """Wait for an item, and take it."""
        while not self.items:
            self.arrived.clear()
            await self.arrived.wait()
        return self.items.popleft()
