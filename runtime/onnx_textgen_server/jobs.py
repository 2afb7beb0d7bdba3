"""The texts of one HTTP request at work: each a request of its own to the model's engine, where it goes on beside all others."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import TypeVar

from onnx_textgen import Cancellation, Chunk, Model
from onnx_textgen.cancellation import Watch
from onnx_textgen.errors import BusyError, OptionError
from onnx_textgen.generation.async_bridge import call, iterate
from onnx_textgen.generation.continuation import Continuation
from onnx_textgen.generation.request import Request
from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen.text.prompts import Prompt

T = TypeVar("T")
MOST_UNTAKEN = 2**17
"""Chunks, and alternatives in them, that wait for a client that does not read; then its texts end."""


def weight_of(chunk: Chunk) -> int:
    """About how much memory a chunk takes."""
    return 1 + sum(map(len, chunk.alternatives))


class Slots:
    """How many texts may be at work or wait, over all clients."""

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, 0
        self.most_of_several = most - (most + 3) // 4
        """A quarter is for requests of one text: a client that wants many does not shut out the others."""
        self.jobs: set[Job] = set()
        """What is at work."""

    def take(self, count: int) -> None:
        """Take so many; raises `BusyError` where there are not as many now, and `OptionError` where there never are."""
        most = self.most if count == 1 else self.most_of_several
        if count > most:
            raise OptionError(f"the request asks for {count:,} texts; this server takes at most {max(1, most):,} of one request")
        if self.taken + count > most:
            raise BusyError(f"{self.taken:,} texts are at work or waiting already; try again later")
        self.taken += count

    def give(self, count: int) -> None:
        """Give them back."""
        self.taken -= count

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold a slot for work on a text that is no job; raises `BusyError`."""
        self.take(1)
        try:
            yield
        finally:
            self.give(1)

    def end_all(self) -> None:
        """End all texts that are at work, as they are."""
        for job in list(self.jobs):
            job.cancel.cancel()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Job:
    """The texts of one request, in the order of its choices: all of the first prompt, then all of the second."""

    model: Model
    continuations: Sequence[Continuation]
    firsts: Sequence[Continuation]
    """The first text of each prompt."""
    watch: Watch
    cancel: Cancellation

    @classmethod
    def begin(
        cls, model: Model, prompts: Sequence[Prompt], config: GenerationConfig, texts: int, most_seconds: float | None
    ) -> Job:
        """`texts` for each prompt, those of one with the same seed; raises `PromptError` and `OptionError`."""
        continuations, firsts = list[Continuation](), list[Continuation]()
        for prompt in prompts:
            samples = model.generator.begin_samples(prompt, config, texts)
            continuations += samples
            firsts.append(samples[0])
        cancel, limits = Cancellation(), [seconds for seconds in (config.max_time, most_seconds) if seconds is not None]
        return cls(model, continuations, firsts, Watch(cancel, min(limits, default=None)), cancel)

    async def finish(self) -> None:
        """Wait for the end of all texts."""
        requests = [Request(each, self.watch, streams=False, caller=self) for each in self.continuations]
        await self.run(lambda: self.model.generator.engine.finish(requests))

    async def run(self, function: Callable[[], T]) -> T:
        """What a function returns, which works in a thread. Cancelling the task ends the job."""
        try:
            return await call(function, Cancellation())
        except BaseException:
            self.cancel.cancel()
            raise

    async def chunks(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        """Chunks of all texts as they come, each with its text's place. Closing the iterator ends the texts."""
        queue, untaken = asyncio.Queue[tuple[int, Chunk | None, Exception | None]](), 0

        async def drain(place: int, continuation: Continuation) -> None:
            nonlocal untaken
            work = functools.partial(self.model.generator.engine.chunks, Request(continuation, self.watch, caller=self))
            try:
                async with contextlib.aclosing(iterate(work, Cancellation())) as stream:  # the end of one is not that of all
                    async for chunk in stream:
                        queue.put_nowait((place, chunk, None))
                        untaken += weight_of(chunk)
                        if untaken > MOST_UNTAKEN:
                            self.cancel.cancel()
            except Exception as error:  # noqa: BLE001 - raised again where the chunks are taken
                queue.put_nowait((place, None, error))
            else:
                queue.put_nowait((place, None, None))

        tasks = [asyncio.create_task(drain(*each)) for each in enumerate(self.continuations)]
        try:
            left = len(tasks)
            while left:
                place, chunk, error = await queue.get()
                if error is not None:
                    raise error
                if chunk is None:
                    left -= 1
                else:
                    untaken -= weight_of(chunk)
                    yield place, chunk
        finally:
            self.cancel.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
