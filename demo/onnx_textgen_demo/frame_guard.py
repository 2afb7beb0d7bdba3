"""No page of others shows this one in a frame, where a visitor's clicks could be led to its buttons."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class FrameGuard:
    """Adds the headers that browsers obey."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back with the headers."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = "frame-ancestors 'self'"
                headers["X-Frame-Options"] = "SAMEORIGIN"
            await send(message)

        await self.app(scope, receive, guarded)
