"""Sends answers to clients, whole or streamed, and cancels the work when a client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import HTTPException, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from onnx_textgen import OnnxTextgenError
from onnx_textgen.errors import LOG

from ..pool.leases import taken_over
from .jobs import Job, Slots
from .measurements import Metrics
from .problems import CLOSED_BY_CLIENT, problem_of
from .wire import Answer, WireFormat

T = TypeVar("T")
DISCONNECT_POLL_SECONDS = 0.1
"""Interval of the checks whether a client that waits for a whole answer is still connected."""
PING_SECONDS = 15
"""Silence in a stream after which a ping is sent: clients give up after some minutes, and a long prompt takes longer."""


async def deliver(
    http: Request, make: Callable[[], Answer], count: int, slots: Slots, metrics: Metrics, *, streams: bool
) -> Response:
    """Make an answer of `count` texts, run it, and send it whole or streamed; raises `BusyError` if the slots do not suffice."""
    start, outcome = time.perf_counter(), "cancelled"
    async with contextlib.AsyncExitStack() as held:
        await held.enter_async_context(taken_over(http))
        slots.acquire(count)
        held.callback(slots.release, count)
        answer = await asyncio.to_thread(make)  # tokenizes, and compiles constraints
        answer.job.unread = slots.unread
        slots.jobs.add(answer.job)
        held.callback(slots.jobs.discard, answer.job)

        def report() -> None:
            stats = [each.stats() for each in answer.job.continuations]
            metrics.answered(answer.operation, answer.name, outcome, time.perf_counter() - start, stats)

        async def events() -> AsyncGenerator[str, None]:
            nonlocal outcome
            try:
                async with contextlib.aclosing(answer.events()) as stream:
                    async for event in stream:
                        yield answer.wire.event(event)
            except Exception as error:  # noqa: BLE001 - the status has been sent
                outcome = "error"
                LOG.warning("a stream ended early (%s)", type(error).__name__, exc_info=not isinstance(error, OnnxTextgenError))
                yield answer.wire.event(answer.failed(problem_of(error)))
                return
            outcome = "done"
            if answer.wire.end:
                yield answer.wire.end

        if streams:
            return EventStream(events(), answer.wire, answer.job, held.pop_all(), report)
        try:
            content = await unless_disconnected(http, answer.whole())
            outcome = "done"
            return JSONResponse(content)
        except HTTPException:
            raise  # the client disconnected
        except Exception:
            outcome = "error"
            raise
        finally:
            report()


class EventStream(StreamingResponse):
    """The events of an answer.

    `held` is closed when the texts have ended: what the client has not read by then needs no model. `report` is called at the end,
    whether all events were sent or the client disconnected.
    """

    def __init__(
        self,
        events: AsyncGenerator[str, None],
        wire: WireFormat,
        job: Job,
        held: contextlib.AsyncExitStack,
        report: Callable[[], None],
    ) -> None:
        super().__init__(events, media_type=wire.media_type, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.events, self.ping, self.job, self.held, self.report = events, wire.ping.encode(), job, held, report
        self.sent: float | None = None
        """When something was sent last, while more is to come."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""

        async def send_timed(message: Message) -> None:
            more = message["type"] == "http.response.start" or message.get("more_body")
            self.sent = time.monotonic() if more else None
            await send(message)

        release, pings = asyncio.create_task(self.release()), asyncio.create_task(self.send_pings(send_timed))
        try:
            await super().__call__(scope, receive, send_timed)
        finally:
            pings.cancel()
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    await self.events.aclose()
            finally:
                self.job.ended.set()  # also if no text has begun
                await release
                self.report()

    async def send_pings(self, send: Send) -> None:
        """Send pings, until cancelled, when nothing else was sent for a while."""
        while self.ping:
            await asyncio.sleep(PING_SECONDS)
            if self.sent is not None and time.monotonic() - self.sent >= PING_SECONDS:
                with contextlib.suppress(OSError):  # the client has gone
                    await send({"type": "http.response.body", "body": self.ping, "more_body": True})

    async def release(self) -> None:
        """Close what is held as soon as the texts have ended."""
        await self.job.ended.wait()
        await self.held.aclose()


async def unless_disconnected(http: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run the work; cancel it and raise if the client disconnects."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=DISCONNECT_POLL_SECONDS))[0]:
            if await http.is_disconnected():
                raise HTTPException(CLOSED_BY_CLIENT, "the client disconnected")
        return task.result()
    finally:
        task.cancel()
