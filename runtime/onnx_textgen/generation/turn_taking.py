"""Of the threads that wait for shared work, one leads: it does the work of all until its own result is ready.

There is no worker thread. When the leader's result is ready, another waiting thread leads. A single caller pays for no
synchronisation, and nothing runs while nobody waits. The work itself is defined elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from ..errors import OptionError

LONGEST_WAIT = 1.0
"""Seconds after which a follower checks whether it should lead, even if no thread woke it."""


class Waiter(Protocol):
    """Protocol of what a thread waits for."""

    changed: threading.Event
    """Set when the thread should check again."""
    is_abandoned: bool
    """Whether its caller is gone."""

    @property
    def is_ready(self) -> bool:
        """Whether there is a result for its caller to take."""


W = TypeVar("W", bound=Waiter)
W_contra = TypeVar("W_contra", bound=Waiter, contravariant=True)


class Work(Protocol[W_contra]):
    """The work of all waiters; only the leader calls these methods."""

    def advance(self, leader: W_contra, /) -> None:
        """Do a part of the work of all, after which the leader may be ready."""

    @property
    def holds_abandoned(self) -> bool:
        """Whether something is held for a caller that is gone."""

    def release_abandoned(self) -> None:
        """Release what is held for callers that are gone."""

    def abort(self, error: BaseException, /) -> None:
        """Give an error to all callers, after an interrupt in the middle of the work."""


class TurnTaking(Generic[W]):
    """The leader and the followers among the waiting threads."""

    def __init__(self, work: Work[W], lock: threading.RLock) -> None:
        """`lock`: held while the state of waiters changes, here and in the work; reentrant."""
        self.work, self.lock = work, lock
        self.leader: W | None = None
        self.leading_thread = 0
        """Identifier of the leader's thread, while there is a leader."""
        self.followers: dict[W, None] = {}
        """Work of the threads that wait while one leads, in order."""

    def wait_for(self, waiter: W) -> None:
        """Lead or follow until there is a result for the caller."""
        try:
            while self.join(waiter):
                if self.leader is waiter:
                    self.lead(waiter)
                else:
                    waiter.changed.wait(LONGEST_WAIT)
        finally:
            self.resign(waiter)

    def join(self, waiter: W) -> bool:
        """Become the leader or a follower; False if there is a result for the caller already."""
        with self.lock:
            self.followers.pop(waiter, None)
            if waiter.is_ready:
                return False
            if self.leader is None:
                self.leader, self.leading_thread = waiter, threading.get_ident()
            elif self.leading_thread == threading.get_ident():
                raise OptionError("this call is inside a run of the model, as in a signal handler; call the model from elsewhere")
            else:
                self.followers[waiter] = None
                waiter.changed.clear()
            return True

    def lead(self, waiter: W) -> None:
        """Work for all until the leader's caller has a result or is gone; then let another thread lead."""
        try:
            while not (waiter.is_ready or waiter.is_abandoned):
                self.work.advance(waiter)
            while self.stays_leader():
                self.work.release_abandoned()
        except BaseException as error:  # an interrupt in the middle: the state of the work is unknown
            if self.leader is waiter:
                self.work.abort(error)
            raise
        finally:
            self.resign(waiter)

    def stays_leader(self) -> bool:
        """Return whether there is something to release; if not, the leader resigns, and a later `leave` does its own release."""
        with self.lock:
            holds_abandoned = self.work.holds_abandoned
            if not holds_abandoned:
                self.leader = None
            return holds_abandoned

    def leave(self, waiters: Sequence[W]) -> None:
        """Release what is held for these waiters, whose callers are gone; if another thread leads, that thread does it."""
        for waiter in waiters:
            waiter.is_abandoned = True
        if not waiters:
            return
        try:
            with self.lock:
                leads = self.leader is None and self.work.holds_abandoned
                if leads:
                    self.leader, self.leading_thread = waiters[0], threading.get_ident()
            if leads:
                self.lead(waiters[0])
        finally:
            self.resign(waiters[0])

    def resign(self, waiter: W) -> None:
        """Stop to lead or follow, also after an interrupt: no thread may wait for this one."""
        with self.lock:
            self.followers.pop(waiter, None)
            if self.leader is waiter:
                self.leader = None
            if self.leader is None:
                self.wake_a_follower()

    def wake_a_follower(self) -> None:
        """Wake a follower to lead; one without a result, as one with a result would return."""
        for follower in self.followers:
            if not follower.is_ready and not follower.is_abandoned:
                follower.changed.set()
                return
