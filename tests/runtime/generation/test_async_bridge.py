"""What a thread makes is taken in an event loop, in order, and the thread never gets far ahead nor stays behind."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from onnx_textgen import Cancellation
from onnx_textgen.generation.async_bridge import MOST_PENDING, Mailbox, iterate


class Counter:
    """Numbers, and how many of them were asked for."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.made, self.fails_at = 0, fails_at
        self.is_full, self.is_closed = threading.Event(), threading.Event()

    def numbers(self) -> Iterator[int]:
        try:
            for number in range(1000):
                if number == self.fails_at:
                    raise ValueError(str(number))
                self.made += 1
                if self.made > MOST_PENDING:
                    self.is_full.set()
                yield number
        finally:
            self.is_closed.set()


def test_items_come_in_order_and_an_error_behind_those_before_it() -> None:
    async def take(counter: Counter) -> list[int]:
        taken = []
        with contextlib.suppress(ValueError):
            async for number in iterate(counter.numbers, Cancellation()):
                taken.append(number)
        return taken

    assert asyncio.run(take(Counter())) == list(range(1000))
    assert asyncio.run(take(Counter(fails_at=300))) == list(range(300))


def test_a_thread_rests_while_nobody_takes_what_it_made_and_ends_when_nobody_will() -> None:
    counter, cancel = Counter(), Cancellation()

    async def leave() -> None:
        async with contextlib.aclosing(iterate(counter.numbers, cancel)) as numbers:
            for taken in range(1, 200):
                await anext(numbers)
                assert counter.made <= taken + MOST_PENDING + 1
                if taken == 1:
                    assert await asyncio.to_thread(counter.is_full.wait, 60)

    asyncio.run(leave())
    assert counter.is_closed.wait(60)
    assert cancel.cancelled
    assert counter.made <= 200 + MOST_PENDING


def test_a_thread_ends_where_the_event_loop_is_gone() -> None:
    counter, loop = Counter(), asyncio.new_event_loop()
    numbers = iterate(counter.numbers, Cancellation())
    assert loop.run_until_complete(anext(numbers)) == 0
    loop.close()
    assert counter.is_closed.wait(60)
    assert counter.made <= MOST_PENDING + 2


def test_a_mailbox_gives_what_threads_put_in_order_and_wakes_the_event_loop_once_for_all_of_it() -> None:
    woken = []

    async def take() -> list[int]:
        mailbox, loop = Mailbox[int](), asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *what: woken.append(what) or wake(*what)  # type: ignore[method-assign]
        for begin in (0, 50):
            thread = threading.Thread(target=lambda first=begin: [mailbox.put([number]) for number in range(first, first + 50)])
            thread.start()
            thread.join()  # which holds the loop, so that it looks only now
            await asyncio.sleep(0)
        return [await mailbox.take() for _ in range(100)]

    assert asyncio.run(take()) == list(range(100))
    assert len(woken) == 2


def test_a_mailbox_whose_event_loop_is_gone_takes_items_silently() -> None:
    async def make() -> Mailbox[int]:
        return Mailbox()

    asyncio.run(make()).put([1])
