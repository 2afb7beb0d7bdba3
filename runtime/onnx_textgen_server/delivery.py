"""How an answer reaches its client, whole or in pieces, and what becomes of the work when the client goes away."""

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

from .answers import Answer
from .jobs import Slots
from .metrics import Metrics
from .schema import Problem

T = TypeVar("T")
CLOSED_BY_CLIENT = 499
LOOK_SECONDS = 0.1
"""How often it is looked whether a client that waits for a whole answer is still there."""


async def deliver(
    http: Request, make: Callable[[], Answer], count: int, slots: Slots, metrics: Metrics, *, streams: bool
) -> Response:
    """Make an answer of so many texts, run it, and tell it whole or in pieces; raises `BusyError` where there are no slots."""
    start, outcome = time.perf_counter(), "cancelled"
    slots.take(count)
    try:
        answer = await asyncio.to_thread(make)  # tokenizes, compiles rules
    except BaseException:
        slots.give(count)
        raise

    slots.jobs.add(answer.job)

    def done() -> None:
        slots.jobs.discard(answer.job)
        slots.give(count)
        operation = "chat" if answer.envelope.kind == "chat.completion" else "text_completion"
        stats = [each.stats() for each in answer.job.continuations]
        metrics.answered(operation, answer.envelope.name, outcome, time.perf_counter() - start, stats)

    async def lines() -> AsyncGenerator[str, None]:
        nonlocal outcome
        try:
            async with contextlib.aclosing(answer.events()) as stream:
                async for event in stream:
                    yield line(event)
        except Exception as error:  # noqa: BLE001 - too late for another status
            outcome = "error"
            LOG.warning("a stream ended early (%s)", type(error).__name__, exc_info=not isinstance(error, OnnxTextgenError))
            yield line(problem_of(error).as_json())
            return
        outcome = "done"
        yield "data: [DONE]\n\n"

    if streams:
        return Stream(lines(), done)
    try:
        told = await unless_gone(http, answer.whole())
        outcome = "done"
        return JSONResponse(told)
    except HTTPException:
        raise  # the client went away
    except Exception:
        outcome = "error"
        raise
    finally:
        done()


class Stream(StreamingResponse):
    """Server-sent events; `done` is called at their end, whether they were all sent or the client went away."""

    def __init__(self, lines: AsyncGenerator[str, None], done: Callable[[], None]) -> None:
        super().__init__(lines, media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.lines, self.done = lines, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await self.lines.aclose()
            self.done()


def line(event: dict[str, Any]) -> str:
    """One server-sent event."""
    # Escaped: U+2028 and its like end a line for some clients.
    return f"data: {json.dumps(event, separators=(',', ':'))}\n\n"


async def unless_gone(http: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work, unless the client goes away: then it is ended."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=LOOK_SECONDS))[0]:
            if await http.is_disconnected():
                raise HTTPException(CLOSED_BY_CLIENT, "the client went away")
        return task.result()
    finally:
        task.cancel()


def problem_of(error: Exception) -> Problem:
    """What a client is told of an error."""
    if not isinstance(error, OnnxTextgenError):
        return Problem(500, f"the server failed ({type(error).__name__}); its log has more", "server_error")
    if isinstance(error, BusyError):
        return Problem(429, str(error), "rate_limit_error", "rate_limit_exceeded")
    if isinstance(error, ModelError) and not isinstance(error, RuleError):  # the rule is the client's own
        return Problem(500, str(error), "server_error")
    return Problem(400, str(error))
