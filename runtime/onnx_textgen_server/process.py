"""The process of a server: texts that are under way end as soon as it is asked to, and their clients are told."""

from __future__ import annotations

import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from .connections import PatientProtocol, most_at_a_time

SECONDS_TO_END = 5
MOST_QUEUED = 2048


class PromptServer(uvicorn.Server):
    """Ends the texts first: else it would wait for the longest of them."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        # asyncio has one number for how many connections it accepts at a time, and how many may wait for that.
        for listener in (each for server in self.servers for each in server.sockets):
            with listener.dup() as same:
                same.listen(MOST_QUEUED)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the work, then the server."""
        self.config.app.state.server.slots.end_all()  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


def make_config(app: FastAPI) -> uvicorn.Config:
    """How uvicorn serves the app."""
    return uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        loop="asyncio",
        backlog=most_at_a_time(),
        log_level="warning",
        timeout_graceful_shutdown=SECONDS_TO_END,
    )


def run_server(app: FastAPI, listeners: list[socket.socket]) -> None:
    """Serve until Ctrl-C, or a signal to end."""
    PromptServer(make_config(app)).run(sockets=listeners)
