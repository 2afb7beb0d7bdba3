"""State that the routes share: models, slots, metrics."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, Protocol

from fastapi import HTTPException, Request

from onnx_textgen import Model
from onnx_textgen.errors import OptionError
from onnx_textgen.hosts import LOOPBACK
from onnx_textgen.options.checks import shown

from .pool.leases import hold
from .pool.member import Member
from .pool.model_pool import ModelPool
from .pool.sources import Description
from .serving.jobs import Slots
from .serving.measurements import Metrics
from .serving.work_queue import WorkQueue


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Limits and access rules of a server."""

    api_key: str | None = None
    max_texts: int = 128
    """Texts that may run or wait, over all clients; more are refused with 429."""
    max_seconds: float | None = 600.0
    """A text ends after this time, whatever its request says."""
    max_body_bytes: int = 4 * 2**20
    max_body_seconds: float = 30.0
    hosts: Sequence[str] = LOOPBACK
    """Host names that the server answers to, as in URLs."""
    origins: Sequence[str] = ()
    """Origins of web pages that may call the server from a browser."""


class TextRequest(Protocol):
    """A body that names a model and perhaps an adapter."""

    model: str | None
    adapter: str | None


class Server:
    """State that the routes share: models, slots, metrics."""

    def __init__(self, pool: ModelPool, settings: Settings) -> None:
        self.pool, self.settings = pool, settings
        self.slots = Slots(settings.max_texts)
        self.metrics = Metrics(lambda: self.slots.taken, lambda: len(pool.loaded))
        self.work = WorkQueue(self.slots, self.metrics, settings.max_seconds)
        pool.on_open, pool.on_close = self.metrics.opened, self.metrics.closed
        self.started = int(time.time())

    def find(self, name: str | None) -> tuple[str, Member, str | None]:
        """The name, the model and the adapter that a name means, or the only model if there is no name; raises 404.

        A model with an adapter is called `NAME:ADAPTER`.
        """
        if not name and len(self.pool.members) == 1:
            name = next(iter(self.pool.members))
        found = self.pool.find(name) if name else None
        if not name or found is None:
            lack = f"there is no model {name!r:.60} here" if name else "the request names no model"
            raise HTTPException(404, f"{lack}; choose one of: {', '.join(self.pool.names())}")
        return name, *found

    async def model(self, http: Request, name: str | None) -> tuple[str, Model]:
        """A model by `find`, opened if necessary.

        It stays open until the response to `http` begins, or its client has left; that of `deliver` until the texts have ended.
        Raises 404, and the errors of `ModelPool.use`.
        """
        name, member, _ = self.find(name)
        return name, await hold(http, self.pool.use(member.name))

    async def model_for(self, http: Request, body: TextRequest) -> tuple[str, Model]:
        """`model` for a text; an adapter in the model's name is written to `body.adapter`."""
        name, _, adapter = self.find(body.model)
        if adapter is not None and body.adapter not in (None, adapter):
            raise OptionError(f"the model {name} has one adapter, and adapter {shown(body.adapter)} is another; leave one out")
        body.adapter = body.adapter if adapter is None else adapter
        return await self.model(http, name)

    def about(self, name: str) -> dict[str, Any]:
        """One entry of `/v1/models`; no model is opened for it."""
        name, member, adapter = self.find(name)
        status = member.status()
        description = Description() if status.get("failed") else member.description()
        return {
            "id": name,
            "object": "model",
            "created": self.started,
            "owned_by": "onnx-textgen",
            "max_model_len": description.context_length,
            "architecture": description.architecture,
            **({"max_source_len": description.source_length} if description.architecture == "encoder-decoder" else {}),
            "precision": description.precision,
            "size_bytes": description.size_bytes,
            "digest": description.digest,
            "status": status,
            **({"parent": member.name} if adapter is not None else {}),
        }
