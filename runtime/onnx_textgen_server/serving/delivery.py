"""Sends answers to clients, whole or streamed, and cancels the work when a client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import HTTPException, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from onnx_textgen import OnnxTextgenError
from onnx_textgen.backends.onnxruntime_session import LOG

from ..measurements import Metrics
from .jobs import Slots
from .problems import CLOSED_BY_CLIENT, problem_of
from .wire import Answer

T = TypeVar("T")
DISCONNECT_POLL_SECONDS = 0.1
"""Interval of the checks whether a client that waits for a whole answer is still connected."""


async def deliver(
    http: Request, make: Callable[[], Answer], count: int, slots: Slots, metrics: Metrics, *, streams: bool
) -> Response:
    """Make an answer of `count` texts, run it, and send it whole or streamed; raises `BusyError` if the slots do not suffice."""
    start, outcome = time.perf_counter(), "cancelled"
    slots.acquire(count)
    try:
        answer = await asyncio.to_thread(make)  # tokenizes, and compiles constraints
    except BaseException:
        slots.release(count)
        raise

    slots.jobs.add(answer.job)

    def done() -> None:
        slots.jobs.discard(answer.job)
        slots.release(count)
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
        return EventStream(events(), answer.wire.media_type, done)
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
        done()


class EventStream(StreamingResponse):
    """The events of an answer. `done` is called at the end, whether all were sent or the client disconnected."""

    def __init__(self, events: AsyncGenerator[str, None], media_type: str, done: Callable[[], None]) -> None:
        super().__init__(events, media_type=media_type, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.events, self.done = events, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await self.events.aclose()
            self.done()


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
