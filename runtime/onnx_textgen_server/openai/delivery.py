"""Sends answers to clients, whole or streamed, and cancels the work when a client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import HTTPException, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from onnx_textgen import OnnxTextgenError
from onnx_textgen.backends.onnxruntime_session import LOG
from onnx_textgen.errors import BusyError, ModelError, RuleError

from ..measurements import Metrics
from .answers import Answer
from .jobs import Slots
from .schema import Problem

T = TypeVar("T")
CLOSED_BY_CLIENT = 499
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
        operation = "chat" if answer.envelope.kind == "chat.completion" else "text_completion"
        stats = [each.stats() for each in answer.job.continuations]
        metrics.answered(operation, answer.envelope.name, outcome, time.perf_counter() - start, stats)

    async def events() -> AsyncGenerator[str, None]:
        nonlocal outcome
        try:
            async with contextlib.aclosing(answer.events()) as stream:
                async for event in stream:
                    yield as_event(event)
        except Exception as error:  # noqa: BLE001 - the status has been sent
            outcome = "error"
            LOG.warning("a stream ended early (%s)", type(error).__name__, exc_info=not isinstance(error, OnnxTextgenError))
            yield as_event(problem_of(error).as_json())
            return
        outcome = "done"
        yield "data: [DONE]\n\n"

    if streams:
        return EventStream(events(), done)
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
    """Server-sent events. `done` is called at the end, whether all were sent or the client disconnected."""

    def __init__(self, events: AsyncGenerator[str, None], done: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.events, self.done = events, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await self.events.aclose()
            self.done()


def as_event(event: dict[str, Any]) -> str:
    """One server-sent event."""
    # JSON escapes non-ASCII: U+2028 and similar characters end a line for some clients.
    return f"data: {json.dumps(event, separators=(',', ':'))}\n\n"


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


def problem_of(error: Exception) -> Problem:
    """The error as the client sees it."""
    if not isinstance(error, OnnxTextgenError):
        return Problem(500, f"the server failed ({type(error).__name__}); its log has more", "server_error")
    if isinstance(error, BusyError):
        return Problem(429, str(error), "rate_limit_error", "rate_limit_exceeded")
    if isinstance(error, ModelError) and not isinstance(error, RuleError):  # the constraint comes from the client
        return Problem(500, str(error), "server_error")
    return Problem(400, str(error))
