"""Requests that compute with a model and generate no text, such as embeddings: their turns, their limits, and their end.

A request is computed in parts, and the requests of one model take turns, so that memory is needed for one of them at a time, and a
request of many texts does not keep others waiting until its end.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

from fastapi import HTTPException, Request
from starlette.responses import Response

from onnx_textgen import Cancellation, InterruptedRunError, Model
from onnx_textgen.errors import OptionError
from onnx_textgen.generation.async_bridge import call

from .delivery import unless_disconnected
from .jobs import Slots
from .measurements import Metrics

T = TypeVar("T")


class Compute(Protocol):
    """Runs a function in a thread when it is the request's turn, and returns its result."""

    async def __call__(self, function: Callable[[Cancellation], T]) -> T:
        """`function` gets what cancels it."""
        ...


class Work(Protocol):
    """A request."""

    @property
    def operation(self) -> str:
        """Its kind, by OpenTelemetry's name."""
        ...

    @property
    def name(self) -> str:
        """The name of the model, as the request gave it."""
        ...

    @property
    def model(self) -> Model:
        """The model itself."""
        ...

    async def whole(self, compute: Compute) -> str:
        """The answer as text, mostly JSON; each part of the work is a call of `compute`."""
        ...


class WorkQueue:
    """The turns of the requests of all models."""

    def __init__(self, slots: Slots, metrics: Metrics, max_seconds: float | None) -> None:
        self.slots, self.metrics, self.max_seconds = slots, metrics, max_seconds
        self.locks: weakref.WeakKeyDictionary[Model, asyncio.Lock] = weakref.WeakKeyDictionary()

    async def answer(self, http: Request, work: Work, media_type: str = "application/json") -> Response:
        """Do the work and send the answer; raises `BusyError` if no slot is free, and `OptionError` if it takes too long."""
        start, outcome = time.perf_counter(), "cancelled"
        try:
            with self.slots.held() as cancel:
                async with asyncio.timeout(self.max_seconds):
                    content = await unless_disconnected(http, work.whole(self.compute_for(work.model, cancel)))
            outcome = "done"
            return Response(content, media_type=media_type)
        except TimeoutError as error:
            raise OptionError(f"the request took longer than {self.max_seconds:g} seconds; send fewer or shorter texts") from error
        except InterruptedRunError as error:
            raise HTTPException(503, "the server is about to end; send the request again later") from error
        except HTTPException:
            raise  # the client disconnected
        except Exception:
            outcome = "error"
            raise
        finally:
            self.metrics.answered(work.operation, work.name, outcome, time.perf_counter() - start, ())

    def compute_for(self, model: Model, cancel: Cancellation) -> Compute:
        """The way in which a request computes with a model."""
        lock = self.locks.setdefault(model, asyncio.Lock())

        async def compute(function: Callable[[Cancellation], T]) -> T:
            own = Cancellation(cancel)  # `call` cancels it at its end
            async with lock:
                return await call(lambda: function(own), own)

        return compute
