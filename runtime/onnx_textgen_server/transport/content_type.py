"""Bodies without a Content-Type, or with the one that curl sends by default, as many programs send them."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

FORMS = "/v1/audio/"
"""How paths begin whose bodies are forms with a file."""


class JSONBodies:
    """Has bodies read as JSON whatever their Content-Type, but for forms with a file.

    Not those that a web page sends, which browsers mark by an Origin: by their Content-Type a browser asks whether the page may.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http":
            headers = MutableHeaders(scope=scope)
            is_form = headers.get("content-type", "").lower().startswith("multipart/form-data")
            if "origin" not in headers and not (is_form and scope["path"].startswith(FORMS)):
                headers["content-type"] = "application/json"
        await self.app(scope, receive, send)
