"""What a connection may cost: seconds until its request begins, and a place that it keeps only while there are enough.

A connection that says nothing, or half of something, costs a client nothing and the server one of its open files. uvicorn waits for
it as long as it lasts, so here it is closed; and where there are too many, the one that has waited longest goes first.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .schema import Problem

if sys.platform != "win32":
    import resource

NO_REQUEST = Problem(400, "this is no HTTP request that the server can read; nothing more is read from this connection")
SECONDS_FOR_HEADERS = 10.0
MOST_CONNECTIONS = 4096
USUAL_OPEN_FILES = 1024
COUNTER = itertools.count()


def open_files() -> int:
    """How many files and connections this process may have open."""
    if sys.platform == "win32":  # where sockets are no files
        limit = USUAL_OPEN_FILES
    else:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit if 0 < limit < 2 * MOST_CONNECTIONS else 2 * MOST_CONNECTIONS


def most_connections() -> int:
    """Half of the files that may be open: those that wait to be accepted or closed are open, too."""
    return open_files() // 2


def most_at_a_time() -> int:
    """How many are accepted before the first of them can be closed."""
    return max(1, open_files() // 16)


class PatientProtocol(H11Protocol):
    """Waits for a request, but not for ever."""

    number = 0
    """Grows from connection to connection."""
    patience: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun, or the last one is answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_owed(self) -> bool:
        """Whether the client still owes a request, or the rest of one."""
        return self.is_idle or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Take a connection, in the place of another where there are too many."""
        super().connection_made(transport)
        self.number = next(COUNTER)
        self.wait_or_not()
        if len(self.connections) > most_connections():
            owed = [each for each in self.connections if isinstance(each, PatientProtocol) and each.is_owed]
            min(owed, key=lambda each: each.number).leave()

    def data_received(self, data: bytes) -> None:
        """Take what comes."""
        super().data_received(data)
        self.wait_or_not()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self.stop_waiting()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, unless an answer has begun or was given: the connection just ends then. `msg` is uvicorn's."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # of a request whose body goes wrong: what it would answer now finds no connection
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            told = json.dumps(NO_REQUEST.as_json()).encode()
            headers = [("Content-Type", "application/json"), ("Content-Length", str(len(told))), ("Connection", "close")]
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=told), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def wait_or_not(self) -> None:
        """Have a timer while the headers of a request are due, and none while a request is at work."""
        if not self.is_idle:
            self.stop_waiting()
        elif self.patience is None:
            self.patience = self.loop.call_later(SECONDS_FOR_HEADERS, self.leave)

    def stop_waiting(self) -> None:
        """Take the timer away."""
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None

    def leave(self) -> None:
        """Close the connection at once; it counts no longer."""
        self.connections.discard(self)
        self.transport.abort()
