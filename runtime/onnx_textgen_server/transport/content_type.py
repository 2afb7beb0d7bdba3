"""Bodies without a Content-Type, or with the one that curl sends by default, as many programs send them."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send


class JSONBodies:
    """Has bodies read as JSON whatever their Content-Type: there are no others.

    Not those that a web page sends, which browsers mark by an Origin: by their Content-Type a browser asks whether the page may.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http":
            headers = MutableHeaders(scope=scope)
            if "origin" not in headers:
                headers["content-type"] = "application/json"
        await self.app(scope, receive, send)
