"""Forbids other pages to show this one in a frame, where they could redirect a visitor's clicks (clickjacking)."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class FrameGuard:
    """Adds the headers that forbid framing."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, and add the headers to its response."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = "frame-ancestors 'self'"
                headers["X-Frame-Options"] = "SAMEORIGIN"
            await send(message)

        await self.app(scope, receive, guarded)
