"""Jobs: the texts of one HTTP request, each a separate request to the model's engine, and the slots that limit them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import TypeVar

from onnx_textgen import Cancellation, Chunk, Model
from onnx_textgen.cancellation import CancelScope
from onnx_textgen.chat.chat_format import Turn
from onnx_textgen.errors import BusyError, OptionError
from onnx_textgen.generation.async_bridge import Mailbox, call
from onnx_textgen.generation.continuation import Continuation
from onnx_textgen.generation.engine import Engine
from onnx_textgen.generation.request import Request
from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen.results import FinishReason
from onnx_textgen.text.prompts import Prompt

T = TypeVar("T")
OWN_ENDS: frozenset[FinishReason] = frozenset({"eos", "stop", "loop"})
"""Reasons for which a text ended by itself."""
ENDED_EARLY: frozenset[FinishReason] = frozenset({"deadline", "cancelled"})
"""Reasons for which a text ended that are neither its own nor a number of tokens: its time was over, or the server ends."""
MAX_UNREAD = 2**17
"""Chunks and alternatives that may wait for a client that does not read; beyond that, its texts are cancelled."""
MAX_UNREAD_IN_ALL = 2**21
"""Over all clients; beyond that, each may leave only `FEW_UNREAD` unread."""
FEW_UNREAD = 2**10


def schema_note(reason: FinishReason | None, follows_rule: bool | None) -> dict[str, bool]:
    """Return `follows_schema`, which no wire format has, for a text that ended by itself and does not follow all of its schema."""
    return {"follows_schema": False} if reason in OWN_ENDS and follows_rule is False else {}


def memory_units(chunk: Chunk) -> int:
    """The approximate memory of a chunk, in units of `MAX_UNREAD`."""
    return 1 + sum(map(len, chunk.alternatives))


class Unread:
    """Counts the chunks and alternatives that wait for clients, also those of texts that have ended."""

    def __init__(self) -> None:
        self.units, self.lock = 0, threading.Lock()
        self.streams: dict[object, int] = {}

    @contextlib.contextmanager
    def counting(self, stream: object) -> Iterator[None]:
        """While the context is open, `add` counts for a stream; then nothing of it waits any more."""
        self.streams[stream] = 0
        try:
            yield
        finally:
            with self.lock:
                self.units -= self.streams.pop(stream)

    def add(self, stream: object, units: int) -> int:
        """Count units of a stream, or fewer if negative, and return how many of its units wait; for any thread."""
        with self.lock:
            if stream not in self.streams:
                return 0
            self.units += units
            self.streams[stream] += units
            return self.streams[stream]

    @property
    def most(self) -> int:
        """The most that one client may leave unread now."""
        return MAX_UNREAD if self.units < MAX_UNREAD_IN_ALL else FEW_UNREAD


class Slots:
    """Limits how many texts may run or wait, over all clients."""

    def __init__(self, limit: int) -> None:
        self.limit, self.taken = limit, 0
        self.max_per_request = limit - (limit + 3) // 4
        """A quarter is reserved for requests of one text, so that a client with many texts does not block the others."""
        self.jobs: set[Job] = set()
        """The running jobs."""
        self.unread = Unread()
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


@dataclasses.dataclass(slots=True, eq=False)
class Job:
    """The texts of one request, in the order of its choices: all of the first prompt, then all of the second."""

    engine: Engine
    continuations: Sequence[Continuation]
    firsts: Sequence[Continuation]
    """The first text of each prompt."""
    scope: CancelScope
    cancel: Cancellation
    unread: Unread = dataclasses.field(default_factory=Unread)
    """What clients have not read, over all jobs that share it."""
    ended: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    """Set when all texts of a stream have ended, whether or not the client has read them."""

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
        cache_salt: str | None = None,
    ) -> Job:
        """Start `texts` samples per prompt; samples of a prompt share its seed. Raises `PromptError` and `OptionError`.

        `turn`: the answer of a chat that each text is. `cache_salt`: only texts of the same one reuse each other's prompts.
        """
        generator = model.generator.for_adapter(config.adapter)
        continuations, firsts = list[Continuation](), list[Continuation]()
        for prompt in prompts:
            samples = generator.begin_samples(prompt, config, texts, turn=turn)
            for sample in samples:
                sample.cache_salt = cache_salt or None
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

    async def chunks(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        """Yield the chunks of all texts, each with the index of its text. Closing the iterator cancels the texts."""
        mailbox = Mailbox[tuple[int, Chunk | Exception | None]]()

        def put(place: int, chunks: Sequence[Chunk]) -> None:
            """Called by the thread that leads, which is one at a time."""
            if self.unread.add(self, sum(map(memory_units, chunks))) > self.unread.most:
                self.cancel.cancel()
            mailbox.put((place, chunk) for chunk in chunks)

        async def run(place: int, continuation: Continuation) -> None:
            request = Request(continuation, self.scope, caller=self, on_chunks=functools.partial(put, place))
            try:
                await call(lambda: self.engine.finish([request]), Cancellation())  # the end of one text does not end the others
            except Exception as error:  # noqa: BLE001 - raised again by the consumer
                mailbox.put([(place, error)])
            else:
                mailbox.put([(place, None)])

        tasks = [asyncio.create_task(run(*each)) for each in enumerate(self.continuations)]
        all_ended = asyncio.gather(*tasks, return_exceptions=True)
        all_ended.add_done_callback(lambda _: self.ended.set())
        try:
            with self.unread.counting(self):
                left = len(tasks)
                while left:
                    place, item = await mailbox.take()
                    if isinstance(item, Exception):
                        raise item
                    if item is None:
                        left -= 1
                    else:
                        self.unread.add(self, -memory_units(item))
                        yield place, item
        finally:
            self.cancel.cancel()
            for task in tasks:
                task.cancel()
            await all_ended
