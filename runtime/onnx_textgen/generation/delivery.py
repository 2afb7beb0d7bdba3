"""Delivers to the caller of a request: chunks, progress, the finish reason, an error. Other threads wait for all of these."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from ..cancellation import InterruptedRunError
from ..inference.prefill import Progress
from ..results import Chunk, FinishReason
from .request import Request


class Delivery:
    """Changes the state that a waiting thread checks, always under the lock that the thread takes before it waits."""

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self.listeners: dict[Request, Callable[[Sequence[Chunk]], None]] = {}
        """The `on_chunks` of requests that have new chunks, which get them after the step."""

    def emit(self, request: Request, chunk: Chunk) -> None:
        """Give a chunk to a request's caller."""
        with self.lock:
            request.chunks.append(chunk)
            if request.on_chunks is not None:
                self.listeners[request] = request.on_chunks
            if chunk.finish_reason is not None:
                self.hand_over()  # before the caller knows of the end
                request.has_ended = True
            if request.is_ready:
                request.changed.set()

    def hand_over(self) -> None:
        """Call each `on_chunks` with the new chunks of its request; an error that one raises is that request's alone."""
        with self.lock:
            listeners, self.listeners = self.listeners, {}
            for request, on_chunks in listeners.items():
                with self.errors_to(request):
                    on_chunks(tuple(request.chunks))
                request.chunks.clear()

    def emit_progress(self, request: Request, progress: Progress) -> None:
        """Give a request's caller the progress of its prompt."""
        with self.lock:
            request.progress.append(progress)
            request.changed.set()

    def finish_early(self, request: Request, reason: FinishReason) -> None:
        """End a text early."""
        self.emit(request, request.continuation.finish(reason))

    def set_error(self, request: Request, error: BaseException) -> None:
        """Give an error to a request's caller."""
        with self.lock:
            self.hand_over()
            request.error, request.logits, request.parts = error, None, None
            request.changed.set()

    @contextlib.contextmanager
    def errors_to(self, request: Request) -> Iterator[None]:
        """Give errors of the body to this request only; an interrupt of the whole process passes through."""
        try:
            yield
        except InterruptedRunError as error:
            self.finish_early(request, error.reason)
        except Exception as error:  # noqa: BLE001 - raised again in the thread of the request's caller
            self.set_error(request, error)
