"""Jobs: the texts of one HTTP request, each a separate request to the model's engine, and the slots that limit them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from typing import TypeVar

from onnx_textgen import Cancellation, Chunk, Model
from onnx_textgen.cancellation import CancelScope
from onnx_textgen.chat.chat_format import Turn
from onnx_textgen.errors import BusyError, OptionError
from onnx_textgen.generation.async_bridge import call, iterate
from onnx_textgen.generation.continuation import Continuation
from onnx_textgen.generation.engine import Engine
from onnx_textgen.generation.request import Request
from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen.text.prompts import Prompt

T = TypeVar("T")
MAX_UNREAD = 2**17
"""Chunks and alternatives that may wait for a client that does not read; beyond that, its texts are cancelled."""


def memory_units(chunk: Chunk) -> int:
    """The approximate memory of a chunk, in units of `MAX_UNREAD`."""
    return 1 + sum(map(len, chunk.alternatives))


class Slots:
    """Limits how many texts may run or wait, over all clients."""

    def __init__(self, limit: int) -> None:
        self.limit, self.taken = limit, 0
        self.max_per_request = limit - (limit + 3) // 4
        """A quarter is reserved for requests of one text, so that a client with many texts does not block the others."""
        self.jobs: set[Job] = set()
        """The running jobs."""
        self.others: set[Cancellation] = set()
        """Those of running work that is no job."""

    def acquire(self, count: int) -> None:
        """Take `count` slots; raises `BusyError` if they are not free now, and `OptionError` if they never can be."""
        limit = self.limit if count == 1 else self.max_per_request
        if count > limit:
            raise OptionError(f"the request asks for {count:,} texts; this server allows at most {max(1, limit):,} per request")
        if self.taken + count > limit:
            raise BusyError(f"{self.taken:,} texts already run or wait; try again later")
        self.taken += count

    def release(self, count: int) -> None:
        """Return `count` slots."""
        self.taken -= count

    @contextlib.contextmanager
    def held(self) -> Iterator[Cancellation]:
        """Hold a slot for work that is not a job, which should end when the `Cancellation` is cancelled; raises `BusyError`."""
        self.acquire(1)
        cancel = Cancellation()
        self.others.add(cancel)
        try:
            yield cancel
        finally:
            self.others.discard(cancel)
            self.release(1)

    def cancel_all(self) -> None:
        """Cancel all running texts, each of which keeps its text so far, and all other work."""
        for cancel in [*(job.cancel for job in self.jobs), *self.others]:
            cancel.cancel()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Job:
    """The texts of one request, in the order of its choices: all of the first prompt, then all of the second."""

    engine: Engine
    continuations: Sequence[Continuation]
    firsts: Sequence[Continuation]
    """The first text of each prompt."""
    scope: CancelScope
    cancel: Cancellation

    @classmethod
    def begin(
        cls,
        model: Model,
        prompts: Sequence[Prompt],
        config: GenerationConfig,
        texts: int,
        max_seconds: float | None,
        *,
        turn: Turn | None = None,
    ) -> Job:
        """`texts` for each prompt, those of one with the same seed; raises `PromptError` and `OptionError`.

        `turn`: the answer of a chat that each text is.
        """
        generator = model.generator.for_adapter(config.adapter)
        continuations, firsts = list[Continuation](), list[Continuation]()
        for prompt in prompts:
            samples = generator.begin_samples(prompt, config, texts, turn=turn)
            continuations += samples
            firsts.append(samples[0])
        cancel, limits = Cancellation(), [seconds for seconds in (config.max_time, max_seconds) if seconds is not None]
        return cls(generator.engine, continuations, firsts, CancelScope(cancel, min(limits, default=None)), cancel)

    async def finish(self) -> None:
        """Wait for the end of all texts."""
        requests = [Request(each, self.scope, streams=False, caller=self) for each in self.continuations]
        await self.run(lambda: self.engine.finish(requests))

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in a thread and return its result. Cancelling the task cancels the job."""
        try:
            return await call(function, Cancellation())
        except BaseException:
            self.cancel.cancel()
            raise

    def chunks(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        """Yield the chunks of all texts, each with the index of its text. Closing the iterator cancels the texts."""
        return self.read(lambda _, chunk: chunk)

    async def read(self, reading: Callable[[int, Chunk], T]) -> AsyncGenerator[tuple[int, T], None]:
        """Yield what `reading` makes of each chunk, with the index of its text. Closing the iterator cancels the texts.

        `reading` gets the index and the chunk, in the thread that waits for the text's chunks, so it may take long. It may be ahead
        of what is yielded.
        """
        queue, unread = asyncio.Queue[tuple[int, tuple[int, T] | None, Exception | None]](), 0

        def made(place: int, request: Request) -> Generator[tuple[int, T], None, None]:
            """What was read, each with its memory."""
            with contextlib.closing(self.engine.chunks(request)) as chunks:
                for chunk in chunks:
                    yield memory_units(chunk), reading(place, chunk)

        async def drain(place: int, continuation: Continuation) -> None:
            nonlocal unread
            work = functools.partial(made, place, Request(continuation, self.scope, caller=self))
            try:
                async with contextlib.aclosing(
                    iterate(work, Cancellation())
                ) as stream:  # the end of one text does not end the others
                    async for item in stream:
                        queue.put_nowait((place, item, None))
                        unread += item[0]
                        if unread > MAX_UNREAD:
                            self.cancel.cancel()
            except Exception as error:  # noqa: BLE001 - raised again by the consumer
                queue.put_nowait((place, None, error))
            else:
                queue.put_nowait((place, None, None))

        tasks = [asyncio.create_task(drain(*each)) for each in enumerate(self.continuations)]
        try:
            left = len(tasks)
            while left:
                place, item, error = await queue.get()
                if error is not None:
                    raise error
                if item is None:
                    left -= 1
                else:
                    unread -= item[0]
                    yield place, item[1]
        finally:
            self.cancel.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
