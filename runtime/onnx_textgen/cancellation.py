"""Ends a generation early: from another thread, or at a deadline.

This also ends a run of the graph that is in progress, between two operators; the cache is then as before that run.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal, Protocol, TypeVar

from .errors import OnnxTextgenError

Reason = Literal["cancelled", "deadline"]
T = TypeVar("T")
WAKING_SECONDS = 0.05
"""How often a call that waits for a lock looks whether it must end."""


class Lock(Protocol):
    """One of `threading`."""

    def acquire(self, *, timeout: float) -> bool:
        """Wait for the lock at most some seconds; returns whether it is held now."""
        ...

    def release(self) -> None:
        """Let others have it."""
        ...


class Cancellation:
    """Lets a caller end generations: pass it to `generate` or `stream`, and call `cancel` from any thread.

    Several calls may share one object. After `cancel` it stays cancelled, and later calls that get it end at once.

    >>> cancel = Cancellation()
    >>> cancel.cancel()
    >>> cancel.cancelled
    True
    """

    def __init__(self, parent: Cancellation | None = None) -> None:
        """`parent`: its `cancel` cancels this object too; the reverse does not hold."""
        self._parent = parent
        self._lock = threading.RLock()  # a signal handler may cancel in a thread that holds it
        self._scopes: list[CancelScope] = []
        """Active scopes; one that several texts share is listed once for each."""
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called, here or on the parent."""
        return self._cancelled or (self._parent is not None and self._parent.cancelled)

    def cancel(self) -> None:
        """End all running calls, within one operator of the graph; safe to call twice, and after the end."""
        with self._lock:
            self._cancelled = True
            for scope in list(self._scopes):
                scope.end_run()

    @contextlib.contextmanager
    def notifying(self, scope: CancelScope) -> Iterator[None]:
        """While the context is open, `cancel` ends the scope's run."""
        with self._lock:
            self._scopes.append(scope)
        try:
            with self._parent.notifying(scope) if self._parent is not None else contextlib.nullcontext():
                yield
        finally:
            with self._lock:
                self._scopes.remove(scope)


class InterruptedRunError(OnnxTextgenError):
    """A run was ended, or not begun, because of a cancellation or a deadline."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"the generation was ended ({reason})")
        self.reason: Reason = reason


class CancelScope:
    """Ends the runs of one call when it is cancelled or at its deadline; with neither it does nothing and takes no time."""

    def __init__(self, cancel: Cancellation | None = None, max_time: float | None = None) -> None:
        """`max_time`: seconds from now."""
        self.cancel = cancel
        self.deadline = None if max_time is None else time.monotonic() + max_time
        self._lock = threading.RLock()  # a signal handler may cancel in a thread that holds it
        self._stop: Callable[[], None] | None = None
        """Ends the run that is in progress."""
        self._stopped = False
        """Whether that run was ended."""

    @property
    def reason(self) -> Reason | None:
        """Why the call must end now; None if it need not."""
        if self.cancel is not None and self.cancel.cancelled:
            return "cancelled"
        return "deadline" if self.deadline is not None and time.monotonic() >= self.deadline else None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """While the context is open, a run ends at the deadline or when cancelled; otherwise only before the next run."""
        with contextlib.ExitStack() as stack:
            if self.cancel is not None:
                stack.enter_context(self.cancel.notifying(self))
            if self.deadline is not None:
                seconds = min(max(0.0, self.deadline - time.monotonic()), threading.TIMEOUT_MAX)
                timer = threading.Timer(seconds, self.end_run)
                timer.daemon = True
                timer.start()
                stack.callback(timer.cancel)
            yield

    def run(self, action: Callable[[], T], stop: Callable[[], None]) -> T:
        """Run a graph; raises `InterruptedRunError` if the call must end, before or during the run.

        `stop` makes `action` raise soon, and may be called from any thread.
        """
        if self.cancel is None and self.deadline is None:
            return action()
        with self._lock:
            self._stop, self._stopped = stop, False
        try:
            if self.reason is not None:
                raise InterruptedRunError(self.reason)
            return action()
        except Exception as error:
            if self._stopped and not isinstance(error, InterruptedRunError):
                raise InterruptedRunError(self.reason or "deadline") from error
            raise
        finally:
            with self._lock:
                self._stop = None

    @contextlib.contextmanager
    def holding(self, lock: Lock) -> Iterator[None]:
        """Within the context, hold a lock; raises `InterruptedRunError` if the call must end before the lock is free."""
        while not lock.acquire(timeout=WAKING_SECONDS):
            if self.reason is not None:
                raise InterruptedRunError(self.reason)
        try:
            yield
        finally:
            lock.release()

    def end_run(self) -> None:
        """End the run that is in progress."""
        with self._lock:
            if self._stop is not None:
                self._stopped = True
                self._stop()


UNCANCELLED = CancelScope()
"""Ends no run: for runs that nobody cancels, or that several callers share."""
