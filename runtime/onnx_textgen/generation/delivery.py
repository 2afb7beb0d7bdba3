"""Delivers to the caller of a request: chunks, progress, the finish reason, an error. Other threads wait for all of these."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ..cancellation import InterruptedRunError
from ..inference.prefill import Progress
from ..results import Chunk, FinishReason
from .request import Request


class Delivery:
    """Changes the state that a waiting thread checks, always under the lock that the thread takes before it waits."""

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock

    def emit(self, request: Request, chunk: Chunk) -> None:
        """Give a chunk to a request's caller."""
        with self.lock:
            request.chunks.append(chunk)
            request.has_ended = request.has_ended or chunk.finish_reason is not None
            if request.is_ready:
                request.changed.set()

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
