"""Any order of requests: what is used stays open, and neither the number of models nor their memory goes beyond the limits."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.errors import PackageError
from onnx_textgen_server.pool import member
from onnx_textgen_server.pool.model_pool import ModelPool, PoolLimits, UnavailableError
from onnx_textgen_server.pool.sources import Description
from support.examples import examples

NAMES = "abcde"
MEMORY = 10


class FakeModel:
    is_closed = False
    folder = Path("none")

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True


@dataclasses.dataclass
class FakeSource:
    name: str
    needed: int
    fails: bool = False
    stays_open: bool = False
    folder: Path = Path("none")
    opened: list[FakeModel] = dataclasses.field(default_factory=list)

    def describe(self) -> Description:
        return Description(needed_bytes=self.needed)

    def open(self) -> Any:
        if self.fails:
            raise PackageError("broken")
        assert all(each.is_closed for each in self.opened), "it is open once"
        self.opened.append(FakeModel())
        return self.opened[-1]


class NoChanges:
    """Stands for `ChangedFiles`."""

    def __init__(self, *_: object) -> None:
        pass

    def first(self) -> None:
        return None


class Client:
    """A request that uses a model until it is told to leave."""

    def __init__(self, pool: ModelPool, source: FakeSource) -> None:
        self.pool, self.source, self.go = pool, source, asyncio.Event()
        self.model: FakeModel | None = None
        self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        with contextlib.suppress(UnavailableError, member.ModelError):
            async with self.pool.use(self.source.name) as model:
                self.model = model  # type: ignore[assignment]
                try:
                    await self.go.wait()
                    assert not self.model.is_closed
                finally:
                    self.model = None


Step = st.tuples(st.sampled_from(["ask", "leave", "cancel", "wait"]), st.integers(0, 9))


@given(
    sizes=st.lists(st.integers(1, MEMORY + 2), min_size=5, max_size=5),
    broken=st.sets(st.integers(0, 4), max_size=1),
    most=st.none() | st.integers(1, 4),
    idle_seconds=st.none() | st.just(0.0),
    steps=st.lists(Step, max_size=30),
)
@examples(60)
def test_limits_hold_and_what_is_used_stays_open(
    sizes: list[int], broken: set[int], most: int | None, idle_seconds: float | None, steps: list[tuple[str, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(member, "ChangedFiles", NoChanges)
        asyncio.run(play(sizes, broken, most, idle_seconds, steps))


async def play(
    sizes: list[int], broken: set[int], most: int | None, idle_seconds: float | None, steps: list[tuple[str, int]]
) -> None:
    sources = [FakeSource(name, sizes[index], index in broken) for index, name in enumerate(NAMES)]

    def in_memory() -> int:
        return sum(each.needed for each in sources if each.opened and not each.opened[-1].is_closed)

    pool = ModelPool(sources, PoolLimits(most, idle_seconds, free_bytes=lambda: MEMORY - in_memory()))
    clients = list[Client]()

    def check() -> None:
        assert in_memory() <= MEMORY
        assert most is None or len(pool.loaded) <= most
        for client in clients:
            assert client.model is None or not client.model.is_closed

    for action, number in steps:
        if action == "ask":
            clients.append(Client(pool, sources[number % len(sources)]))
        elif action == "wait":
            await settle(pool)
        elif clients:
            client = clients[number % len(clients)]
            client.go.set() if action == "leave" else client.task.cancel()
        await asyncio.sleep(0)
        check()
    for client in clients:
        client.go.set()
    await asyncio.gather(*[client.task for client in clients], return_exceptions=True)
    await settle(pool)
    check()
    assert not any(each.users for each in pool.members.values())
    assert idle_seconds is None or not pool.loaded
    for client in clients:
        assert client.task.cancelled() or client.task.exception() is None
    fits = next((each for each in sources if each.needed <= MEMORY and not each.fails), None)
    if fits is not None:
        async with pool.use(fits.name) as model:  # nothing that came before keeps a model out
            assert not model.is_closed  # type: ignore[attr-defined]
    await pool.close()
    assert in_memory() == 0


async def settle(pool: ModelPool) -> None:
    """Wait until no model is being opened or closed, and timers that are due have fired."""
    for _ in range(2):
        await asyncio.sleep(0)
        await asyncio.gather(
            *pool.closing, *[each.opening for each in pool.members.values() if each.opening], return_exceptions=True
        )
        await asyncio.sleep(0.001)
