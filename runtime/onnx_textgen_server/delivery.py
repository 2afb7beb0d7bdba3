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
from onnx_textgen.errors import BusyError, ModelError
from onnx_textgen.session import LOG

from .answers import Answer
from .jobs import Slots
from .metrics import Metrics
from .schema import Problem

T = TypeVar("T")
CLOSED_BY_CLIENT = 499
LOOK_SECONDS = 0.1
"""How often it is looked whether a client that waits for a whole answer is still there."""


async def deliver(http: Request, answer: Answer, slots: Slots, metrics: Metrics, *, in_pieces: bool) -> Response:
    """Run what an answer needs, and tell it whole or in pieces; raises `BusyError` where there is no slot for its texts."""
    job, start = answer.job, time.perf_counter()
    count, outcome = len(job.continuations), "cancelled"
    slots.take(count)

    def done() -> None:
        slots.give(count)
        operation = "chat" if answer.envelope.kind == "chat.completion" else "text_completion"
        stats = [each.stats() for each in job.continuations]
        metrics.answered(operation, answer.envelope.name, outcome, time.perf_counter() - start, stats)

    async def lines() -> AsyncGenerator[str, None]:
        nonlocal outcome
        try:
            async with contextlib.aclosing(answer.events()) as stream:
                async for event in stream:
                    yield line(event)
        except OnnxTextgenError as error:  # too late for another status
            outcome = "error"
            LOG.warning("a stream ended early: %s", error)
            yield line(problem_of(error).as_json())
            return
        outcome = "done"
        yield "data: [DONE]\n\n"

    if in_pieces:
        return Stream(lines(), done)
    try:
        told = await unless_gone(http, answer.whole())
        outcome = "done"
        return JSONResponse(told)
    except OnnxTextgenError:
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
    return f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"


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


def problem_of(error: OnnxTextgenError) -> Problem:
    """What a client is told of an error."""
    if isinstance(error, BusyError):
        return Problem(429, str(error), "rate_limit_error", "rate_limit_exceeded")
    if isinstance(error, ModelError):
        return Problem(500, str(error), "server_error")
    return Problem(400, str(error))
