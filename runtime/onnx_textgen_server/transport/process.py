"""The server process. On Ctrl-C or SIGTERM it cancels all running texts first, so their clients still get an answer.

With a time to drain, SIGTERM lets them end by themselves for so long, while no new connection is accepted.
"""

from __future__ import annotations

import asyncio
import math
import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from .connections import TimedProtocol, max_accepted_at_once

SHUTDOWN_SECONDS = 5
"""For answers to be sent, after their texts have ended."""
MAX_QUEUED = 2048


class FastShutdownServer(uvicorn.Server):
    """Cancels all texts on shutdown, or after a time; uvicorn would wait for the longest of them."""

    def __init__(self, config: uvicorn.Config, drain_seconds: float = 0) -> None:
        super().__init__(config)
        self.drain_seconds = drain_seconds
        self.loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)
        # asyncio uses one number for the connections accepted at a time and for those that may wait; here they differ.
        for listener in (each for server in self.servers for each in server.sockets):
            with listener.dup() as same:
                same.listen(MAX_QUEUED)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop the server, and cancel the work: at once, or by SIGTERM in `drain_seconds`. A second signal does not wait."""
        cancel_all = self.config.app.state.server.slots.cancel_all  # type: ignore[union-attr]
        if self.loop is None or self.should_exit or not self.drain_seconds or sig != signal.SIGTERM:
            cancel_all()
            if self.loop is not None and self.should_exit:  # the shutdown that began waits longer
                self.loop.call_soon_threadsafe(self.loop.call_later, SHUTDOWN_SECONDS, self.close_connections)
        else:
            self.config.timeout_graceful_shutdown = math.ceil(self.drain_seconds) + SHUTDOWN_SECONDS
            self.loop.call_soon_threadsafe(self.loop.call_later, self.drain_seconds, cancel_all)
        if sig == signal.SIGTERM:  # uvicorn would raise it again at the end, and what runs at exit would not run
            self.should_exit = True
        else:
            super().handle_exit(sig, frame)

    def close_connections(self) -> None:
        """Wait for no answer any more."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def make_config(app: FastAPI) -> uvicorn.Config:
    """uvicorn's configuration for the app."""
    return uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        loop="asyncio",
        backlog=max_accepted_at_once(),
        log_level="warning",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def run_server(app: FastAPI, listeners: list[socket.socket], *, drain_seconds: float = 0) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    FastShutdownServer(make_config(app), drain_seconds).run(sockets=listeners)
