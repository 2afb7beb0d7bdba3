"""Of several threads that wait for common work, one leads: it does the work of all, until it has what it waits for itself.

There is no worker thread. A leader that is done hands over to another waiting thread; a lone caller pays for no synchronisation,
and nothing runs while nobody waits. What the work is, this class does not know.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from ..errors import OptionError

LONGEST_WAIT = 1.0
"""Seconds after which a thread looks again whether it should lead, whatever it was told."""


class Waiter(Protocol):
    """What a thread waits for."""

    changed: threading.Event
    """Set when the thread should look again."""
    is_abandoned: bool
    """Whether its caller is gone."""

    @property
    def is_ready(self) -> bool:
        """Whether there is something for its caller."""


W = TypeVar("W", bound=Waiter)
W_contra = TypeVar("W_contra", bound=Waiter, contravariant=True)


class Work(Protocol[W_contra]):
    """What the leader does for all, calling these one after the other."""

    def advance(self, leader: W_contra, /) -> None:
        """Do a part of everybody's work, after which the leader may be ready."""

    @property
    def holds_abandoned(self) -> bool:
        """Whether something is held for a caller that is gone."""

    def release_abandoned(self) -> None:
        """Release that."""

    def abort(self, error: BaseException, /) -> None:
        """An interrupt came in the middle: let all callers know."""


class TurnTaking(Generic[W]):
    """Who leads, and who follows."""

    def __init__(self, work: Work[W], lock: threading.RLock) -> None:
        """`lock` is held where the waiters' state changes, here and in the work; one that a thread may take twice."""
        self.work, self.lock = work, lock
        self.leader: W | None = None
        self.leading_thread = 0
        """Its thread, while there is a leader."""
        self.followers: dict[W, None] = {}
        """What other threads wait for while one leads, in order."""

    def wait_for(self, waiter: W) -> None:
        """Lead or follow until there is something for the caller."""
        try:
            while self.join(waiter):
                if self.leader is waiter:
                    self.lead(waiter)
                else:
                    waiter.changed.wait(LONGEST_WAIT)
        finally:
            self.resign(waiter)

    def join(self, waiter: W) -> bool:
        """Become the leader, or one of the followers; False where there is something for the caller already."""
        with self.lock:
            self.followers.pop(waiter, None)
            if waiter.is_ready:
                return False
            if self.leader is None:
                self.leader, self.leading_thread = waiter, threading.get_ident()
            elif self.leading_thread == threading.get_ident():
                raise OptionError("this runs inside a run of the model, in a signal handler say; ask the model from elsewhere")
            else:
                self.followers[waiter] = None
                waiter.changed.clear()
            return True

    def lead(self, waiter: W) -> None:
        """Work for all until there is something for the leader's caller, or the caller is gone; then let another thread lead."""
        try:
            while not (waiter.is_ready or waiter.is_abandoned):
                self.work.advance(waiter)
            while self.stays_leader():
                self.work.release_abandoned()
        except BaseException as error:  # an interrupt in the middle: what is half done is not known
            if self.leader is waiter:
                self.work.abort(error)
            raise
        finally:
            self.resign(waiter)

    def stays_leader(self) -> bool:
        """Whether there is something to release; if not the leader steps down, so that whoever leaves next releases its own."""
        with self.lock:
            holds_abandoned = self.work.holds_abandoned
            if not holds_abandoned:
                self.leader = None
            return holds_abandoned

    def leave(self, waiters: Sequence[W]) -> None:
        """The callers of these are gone: what is held for them is released, by the leader where another thread leads."""
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
        """After an interrupt too: a thread that neither leads nor follows any more must not be counted on."""
        with self.lock:
            self.followers.pop(waiter, None)
            if self.leader is waiter:
                self.leader = None
            if self.leader is None:
                self.wake_a_follower()

    def wake_a_follower(self) -> None:
        """Let another thread lead: one that has nothing to take, and so would not just go away."""
        for follower in self.followers:
            if not follower.is_ready and not follower.is_abandoned:
                follower.changed.set()
                return
