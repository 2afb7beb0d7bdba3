"""Interface of a wire format: the forms of problems and of streams, and the answer to a request."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

from .jobs import Job
from .problems import Problem


@dataclasses.dataclass(frozen=True, slots=True)
class WireFormat:
    """The forms that a vendor's clients read."""

    problem: Callable[[Problem], dict[str, Any]]
    """The body of a response for a problem."""
    event: Callable[[dict[str, Any]], str]
    """An event of a stream as text."""
    media_type: str = "text/event-stream"
    """Of a stream."""
    end: str = ""
    """The end of a stream that did not fail."""
    ping: str = ""
    """What says in a stream that nothing is to be said yet, if clients read past it."""


class Answer(Protocol):
    """The answer to one request: its job, and the job's results in the wire format."""

    @property
    def wire(self) -> WireFormat:
        """The wire format."""
        ...

    @property
    def job(self) -> Job:
        """The texts."""
        ...

    @property
    def name(self) -> str:
        """The name by which the client calls the model."""
        ...

    @property
    def operation(self) -> str:
        """OpenTelemetry's name of what the request asks for."""
        ...

    async def whole(self) -> dict[str, Any]:
        """Run to the end and return the body of the response."""
        ...

    def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Run, and yield the events of a stream."""
        ...

    def failed(self, problem: Problem) -> dict[str, Any]:
        """The last event of a stream that fails."""
        ...


def server_sent(event: dict[str, Any], *, name: str | None = None) -> str:
    """One server-sent event."""
    # JSON escapes non-ASCII: U+2028 and similar characters end a line for some clients.
    data = f"data: {json.dumps(event, separators=(',', ':'))}\n\n"
    return data if name is None else f"event: {name}\n{data}"
