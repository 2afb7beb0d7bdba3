"""The process of a server: texts that are under way end as soon as it is asked to, and their clients are told."""

from __future__ import annotations

import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

SECONDS_TO_END = 5


class PromptServer(uvicorn.Server):
    """Ends the texts first: else it would wait for the longest of them."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the work, then the server."""
        self.config.app.state.server.slots.end_all()  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


def run_server(app: FastAPI, listeners: list[socket.socket]) -> None:
    """Serve until Ctrl-C, or a signal to end."""
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=SECONDS_TO_END)
    PromptServer(config).run(sockets=listeners)
