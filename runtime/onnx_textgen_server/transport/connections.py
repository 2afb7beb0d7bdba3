"""Limits on connections: seconds until the headers are complete, seconds without reading, and how many may be open.

A connection that sends nothing, or half a request, or reads nothing, costs a client nothing and the server one open file. uvicorn
waits for it without end. Here it is closed after a time limit. If there are too many, the one that has waited longest for its
request is closed first.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..openai.wire import OPENAI
from ..serving.problems import Problem

if sys.platform != "win32":
    import resource

NOT_HTTP = Problem(400, "this is not an HTTP request that the server can read; it reads nothing more from this connection")
HEADER_SECONDS = 10.0
SEND_SECONDS = 30.0
"""A connection is closed if its client has read nothing between two checks at this interval: after at most twice as long."""
MAX_CONNECTIONS = 4096
DEFAULT_OPEN_FILES = 1024
COUNTER = itertools.count()


def open_files() -> int:
    """How many files and connections this process may have open."""
    if sys.platform == "win32":  # where sockets are no files
        limit = DEFAULT_OPEN_FILES
    else:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit if 0 < limit < 2 * MAX_CONNECTIONS else 2 * MAX_CONNECTIONS


def max_connections() -> int:
    """Half of the files that may be open, because connections that wait to be accepted or closed are open too."""
    return open_files() // 2


def max_accepted_at_once() -> int:
    """How many connections are accepted before the first of them can be closed."""
    return max(1, open_files() // 16)


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP protocol with a time limit for headers and a limit on the number of connections."""

    number = 0
    """Counts connections; a smaller number is older."""
    header_timer: asyncio.TimerHandle | None = None
    send_timer: asyncio.TimerHandle | None = None
    """Runs while bytes wait for the client to read."""

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun, or the last one is answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def awaits_request(self) -> bool:
        """Whether the server waits for a request, or for the rest of one."""
        return self.is_idle or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Accept a connection; if there are too many, close the oldest that has no complete request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` is then called whenever bytes wait
        self.number = next(COUNTER)
        self.update_timer()
        if len(self.connections) > max_connections():
            waiting = [each for each in self.connections if isinstance(each, TimedProtocol) and each.awaits_request]
            min(waiting, key=lambda each: each.number).close_now()

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        super().data_received(data)
        self.update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self.stop_timer()
        self.stop_send_timer()

    def pause_writing(self) -> None:
        """Begin to check that the client reads."""
        super().pause_writing()
        self.send_timer = self.loop.call_later(SEND_SECONDS, self.check_progress, None)

    def resume_writing(self) -> None:
        """Everything is sent."""
        super().resume_writing()
        self.stop_send_timer()

    def check_progress(self, before: int | None) -> None:
        """Close the connection if as many bytes wait as at the last check; `before`: how many those were."""
        waiting = self.transport.get_write_buffer_size()
        if before is not None and waiting >= before:
            self.close_now()
        else:
            self.send_timer = self.loop.call_later(SEND_SECONDS, self.check_progress, waiting)

    def stop_send_timer(self) -> None:
        """Cancel the checks."""
        if self.send_timer is not None:
            self.send_timer.cancel()
            self.send_timer = None

    def send_400_response(self, msg: str) -> None:
        """Answer 400 to bytes that are not HTTP. Once an answer has begun, only close the connection. `msg` is uvicorn's."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # a request whose body is malformed gets no other answer
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            content = json.dumps(OPENAI.problem(NOT_HTTP)).encode()
            headers = [("Content-Type", "application/json"), ("Content-Length", str(len(content))), ("Connection", "close")]
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=content), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def update_timer(self) -> None:
        """Run the timer while the server waits for headers, and stop it while a request is processed."""
        if not self.is_idle:
            self.stop_timer()
        elif self.header_timer is None:
            self.header_timer = self.loop.call_later(HEADER_SECONDS, self.close_now)

    def stop_timer(self) -> None:
        """Cancel the timer."""
        if self.header_timer is not None:
            self.header_timer.cancel()
            self.header_timer = None

    def close_now(self) -> None:
        """Close the connection at once; it no longer counts."""
        self.connections.discard(self)
        self.transport.abort()
