"""The models of a server: each is opened when it is first requested, and closed when it is idle or others need its memory.

One model is opened at a time, so that each plan sees the memory that the last one left. What is used is never closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Literal

from fastapi import HTTPException

from onnx_textgen import Model, OnnxTextgenError
from onnx_textgen.errors import LOG, BusyError, ModelError, PackageError
from onnx_textgen.machine_limits import available_bytes, number_of

from .member import Member
from .sources import Source

RETRY_SECONDS = 5
"""What clients are told to wait when there is no room for a model, and how long a failure to open one is remembered."""
PROCESS = Path("/proc/self/status")

CloseReason = Literal["idle", "room", "changed", "end"]


class UnavailableError(HTTPException):
    """A model that cannot be opened now."""

    def __init__(self, detail: str) -> None:
        super().__init__(503, detail, {"Retry-After": str(RETRY_SECONDS)})


def free_bytes() -> int | None:
    """Bytes for another model: available memory, without the files that are mapped here; None if the system does not tell.

    The system counts mapped files, which may be weights, as available.
    """
    free = available_bytes()
    with contextlib.suppress(OSError, LookupError, ValueError):
        return None if free is None else max(0, free - 1024 * number_of("RssFile:", PROCESS))
    return free


@dataclasses.dataclass(frozen=True, slots=True)
class PoolLimits:
    """When models are closed, and when they are not opened."""

    max_loaded: int | None = None
    """Most models that are open at once; None: as many as memory has room for."""
    idle_seconds: float | None = None
    """A model is closed when it was not used for so long; None: it stays open."""
    max_waiting: int = 128
    """Most requests that wait until models are open."""
    free_bytes: Callable[[], int | None] = free_bytes
    """Returns the bytes that another model may take; None if nobody knows."""


class ModelPool:
    """Models by name. What opens and closes them is for the thread of the event loop, except for `open_at_start`."""

    def __init__(self, sources: Sequence[Source], limits: PoolLimits | None = None) -> None:
        self.limits = limits or PoolLimits()
        self.members = {source.name: Member(source) for source in sources}
        for member in self.members.values():
            if member.source.stays_open:
                member.begin(member.source.open())
        self.changing = asyncio.Lock()
        """Held while a model is opened."""
        self.closing = set[asyncio.Task[None]]()
        self.waiting, self.uses = 0, itertools.count()
        self.on_open: Callable[[str, float], None] = lambda _name, _seconds: None
        """Called when a model was opened, with the seconds that it took."""
        self.on_close: Callable[[str, CloseReason], None] = lambda _name, _reason: None

    def names(self) -> list[str]:
        """All names that a request may give: of each model its own, and `NAME:ADAPTER` for its adapters."""
        found = list[str]()
        for name, member in self.members.items():
            found.append(name)
            with contextlib.suppress(PackageError):
                found += [f"{name}:{adapter}" for adapter in member.description().adapters]
        return list(dict.fromkeys(found))

    def find(self, name: str) -> tuple[Member, str | None] | None:
        """The model that a name means, and the adapter; None if there is none."""
        if name in self.members:
            return self.members[name], None
        own, _, adapter = name.rpartition(":")
        member = self.members.get(own)
        if member is not None:
            with contextlib.suppress(PackageError):
                return (member, adapter) if adapter in member.description().adapters else None
        return None

    def problems(self) -> list[str]:
        """Return the known reasons why models cannot be opened."""
        return [problem for member in self.members.values() if (problem := member.problem()) is not None]

    @property
    def loaded(self) -> list[Member]:
        """The open models."""
        return [member for member in self.members.values() if member.model is not None]

    def open_at_start(self, names: Sequence[str]) -> None:
        """Open models before the server starts, the first in any case and the others while there is room.

        Raises the errors of `onnx_textgen.load`.
        """
        for name in names:
            member = self.members[name]
            member.description()
            if self.loaded and (lack := self.lack(member)):
                LOG.warning("%s; it is opened when it is first requested", lack)
                continue
            self.open_now(member)

    def start(self) -> None:
        """Begin to close idle models."""
        for member in self.loaded:
            self.wait_until_idle(member)

    async def close(self) -> None:
        """Close all models that this pool opened."""
        for member in self.loaded:
            if not member.source.stays_open:
                self.shut(member, "end")
        await asyncio.gather(*self.closing)

    @contextlib.asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Model]:
        """The model of this name, opened if necessary; it stays open within the block.

        Raises `ModelError` if it cannot be opened, `UnavailableError` if there is no room for it now, and `BusyError` if too many
        requests wait for models.
        """
        member = self.members[name]
        member.users += 1
        try:
            yield await self.opened(member)
        finally:
            member.users -= 1
            member.last_used = next(self.uses)
            self.wait_until_idle(member)

    async def opened(self, member: Member) -> Model:
        """The open model; the caller is counted in `users`, so it is not closed meanwhile."""
        if member.files is not None and member.model is not None and (changed := member.files.first()) is not None:
            self.shut_changed(member, changed.name)
        while member.model is None:
            if self.waiting >= self.limits.max_waiting:
                raise BusyError(f"{self.waiting:,} requests already wait for models to be opened; try again later")
            if member.failure is not None and time.monotonic() - member.failure[0] < RETRY_SECONDS:
                raise member.failure[1]
            if member.opening is None:
                member.opening = asyncio.create_task(self.open(member))
                member.opening.add_done_callback(read_error)
            self.waiting += 1
            try:
                await asyncio.shield(member.opening)
            finally:
                self.waiting -= 1
        return member.model

    def shut_changed(self, member: Member, file: str) -> None:
        """Close a model whose file has changed; raises an error if it is in use or may not be closed."""
        why = f"{file} has changed since this server opened {member.source.folder.name}"
        if member.source.stays_open:
            raise ModelError(f"{why}; restart the server, and replace a served folder only as a whole, by a rename")
        if member.users > 1:
            raise UnavailableError(f"{why}; {member.name} is opened again as soon as its running texts have ended")
        self.shut(member, "changed")

    async def open(self, member: Member) -> None:
        """Open a model in a thread, after closing idle ones if there is no room; raises `ModelError` and `UnavailableError`."""
        try:
            async with self.changing:
                await self.make_room(member)
                try:
                    await asyncio.to_thread(self.open_now, member)
                except OnnxTextgenError as error:
                    failure = member.cannot_open(error)
                    member.failure = time.monotonic(), failure
                    raise failure from error
            self.wait_until_idle(member)  # those who waited may have left
        finally:
            member.opening = None  # here, not in a callback: the model may be closed before one runs

    def open_now(self, member: Member) -> None:
        """Open a model, and report how long that took; raises the errors of `onnx_textgen.load`."""
        start = time.perf_counter()
        member.begin(member.source.open())
        self.on_open(member.name, time.perf_counter() - start)

    async def make_room(self, member: Member) -> None:
        """Close idle models, the least recently used first, until there is room for this one; raises `UnavailableError`."""
        await asyncio.gather(*self.closing)
        while (lack := self.lack(member)) is not None:
            if not self.can_make_room(member):  # and then nothing is closed in vain
                raise UnavailableError(f"{lack}; try again later")
            self.shut(min(self.idle(), key=lambda each: each.last_used), "room")
            await asyncio.gather(*self.closing)

    def idle(self) -> list[Member]:
        """The open models that may be closed now."""
        return [each for each in self.loaded if not each.users and not each.source.stays_open]

    def can_make_room(self, member: Member) -> bool:
        """Return whether closing idle models would make room for one, by estimates of their memory."""
        idle, free = self.idle(), self.limits.free_bytes()
        most = self.limits.max_loaded
        if not idle or (most is not None and len(self.loaded) - len(idle) >= most):
            return False
        return free is None or member.needed_bytes() <= free + sum(each.needed_bytes() for each in idle)

    def lack(self, member: Member) -> str | None:
        """Why there is no room for a model next to the open ones; None if there is."""
        most, free = self.limits.max_loaded, self.limits.free_bytes()
        if most is not None and len(self.loaded) >= most:
            return f"{member.name} is not open, and {len(self.loaded)} other models are, the most that this server opens at once"
        if free is not None and member.needed_bytes() > free:
            sizes = f"{member.needed_bytes() / 1e9:.2f} GB of memory and {free / 1e9:.2f} GB are free"
            return f"{member.name} is not open, needs about {sizes} next to the models in use"
        return None

    def wait_until_idle(self, member: Member) -> None:
        """Close a model after `idle_seconds`, unless it is used until then."""
        if member.timer is not None:
            member.timer.cancel()
            member.timer = None
        seconds = self.limits.idle_seconds
        if seconds is not None and not member.users and member.model is not None and not member.source.stays_open:
            member.timer = asyncio.get_running_loop().call_later(seconds, self.shut_if_idle, member)

    def shut_if_idle(self, member: Member) -> None:
        """Close a model if nobody uses it."""
        if member in self.idle():
            self.shut(member, "idle")

    def shut(self, member: Member, reason: CloseReason) -> None:
        """Begin to close an open model, in a thread; from now on it counts as not open."""
        model, member.model = member.model, None
        assert model is not None, "only open models are closed"
        task = asyncio.create_task(asyncio.to_thread(model.close))
        self.closing.add(task)
        task.add_done_callback(self.closing.discard)
        self.on_close(member.name, reason)


def read_error(task: asyncio.Task[None]) -> None:
    """Take the error of a task, as those who waited for it may have left, and asyncio reports errors that nobody takes."""
    if not task.cancelled():
        task.exception()
