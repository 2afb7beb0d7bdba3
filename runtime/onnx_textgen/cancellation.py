"""Ending a generation before its time: from another thread, or at a deadline.

A run of the graph that is under way is ended too, between two of its operators; the cache then is as before that run.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

from .errors import OnnxTextgenError

Reason = Literal["cancelled", "deadline"]
T = TypeVar("T")


class Cancellation:
    """What a caller keeps to end generations: give it to `generate` or `stream`, and call `cancel` from any thread.

    One object may serve several calls; once cancelled it stays so, and calls that get it end at once.

    >>> cancel = Cancellation()
    >>> cancel.cancel()
    >>> cancel.cancelled
    True
    """

    def __init__(self, parent: Cancellation | None = None) -> None:
        """`parent`: one whose `cancel` cancels this one too, and not the other way round."""
        self._parent = parent
        self._lock = threading.RLock()  # a signal handler may cancel in a thread that has it
        self._watches: list[Watch] = []
        """A watch is here as often as it is active: several texts may share one."""
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called, here or on the parent."""
        return self._cancelled or (self._parent is not None and self._parent.cancelled)

    def cancel(self) -> None:
        """End what is running, within one operator of the graph; safe to call twice, and after the end."""
        with self._lock:
            self._cancelled = True
            for watch in list(self._watches):
                watch.end_run()

    @contextlib.contextmanager
    def told_to(self, watch: Watch) -> Iterator[None]:
        """Within it, cancelling ends the watch's run."""
        with self._lock:
            self._watches.append(watch)
        try:
            with self._parent.told_to(watch) if self._parent is not None else contextlib.nullcontext():
                yield
        finally:
            with self._lock:
                self._watches.remove(watch)


class InterruptedRunError(OnnxTextgenError):
    """A run was ended, or not begun, for a reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"the generation was ended ({reason})")
        self.reason: Reason = reason


class Watch:
    """Watches over the runs of one call. With neither a cancellation nor a time limit it does nothing and costs nothing."""

    def __init__(self, cancel: Cancellation | None = None, max_time: float | None = None) -> None:
        """`max_time`: seconds from now."""
        self.cancel = cancel
        self.deadline = None if max_time is None else time.monotonic() + max_time
        self._lock = threading.RLock()  # a signal handler may cancel in a thread that has it
        self._stop: Callable[[], None] | None = None
        """Ends the run that is under way."""
        self._stopped = False
        """Whether it was ended."""

    @property
    def reason(self) -> Reason | None:
        """Why to end now, if at all."""
        if self.cancel is not None and self.cancel.cancelled:
            return "cancelled"
        return "deadline" if self.deadline is not None and time.monotonic() >= self.deadline else None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Within it, runs end at the deadline or when cancelled, and not only before the next run."""
        with contextlib.ExitStack() as stack:
            if self.cancel is not None:
                stack.enter_context(self.cancel.told_to(self))
            if self.deadline is not None:
                seconds = min(max(0.0, self.deadline - time.monotonic()), threading.TIMEOUT_MAX)
                timer = threading.Timer(seconds, self.end_run)
                timer.daemon = True
                timer.start()
                stack.callback(timer.cancel)
            yield

    def run(self, action: Callable[[], T], stop: Callable[[], None]) -> T:
        """Run a graph; raises `InterruptedRunError` where there is a reason to end, before or during the run.

        `stop` lets `action` raise soon, from any thread.
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

    def end_run(self) -> None:
        """End the run that is under way."""
        with self._lock:
            if self._stop is not None:
                self._stopped = True
                self._stop()


NOBODY = Watch()
"""Ends no run: for those that nobody cancels, or that are several callers'."""
