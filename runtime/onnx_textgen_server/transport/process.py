"""The server process. On Ctrl-C or SIGTERM it cancels all running texts first, so their clients still get an answer."""

from __future__ import annotations

import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from .connections import TimedProtocol, max_accepted_at_once

SHUTDOWN_SECONDS = 5
MAX_QUEUED = 2048


class FastShutdownServer(uvicorn.Server):
    """Cancels all texts on shutdown; uvicorn would wait for the longest of them."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        # asyncio uses one number for the connections accepted at a time and for those that may wait; here they differ.
        for listener in (each for server in self.servers for each in server.sockets):
            with listener.dup() as same:
                same.listen(MAX_QUEUED)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Cancel the work, then stop the server."""
        self.config.app.state.server.slots.cancel_all()  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


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


def run_server(app: FastAPI, listeners: list[socket.socket]) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    FastShutdownServer(make_config(app)).run(sockets=listeners)
