"""Headers that tell the browser what this page may do: nothing from other hosts, and not in a frame of other pages.

Texts of models are escaped where they are shown. If one should yet become HTML, it could neither load a picture, and so tell a
server what was said, nor send anything. In a frame, another page could redirect a visitor's clicks (clickjacking).
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",  # Gradio's start, and how it runs the scripts of components
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "media-src 'self' data: blob:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'self'",
    )
)


class PolicyGuard:
    """Adds the headers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, and add the headers to its response."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = POLICY
                headers["X-Frame-Options"] = "SAMEORIGIN"
                headers["Referrer-Policy"] = "same-origin"
            await send(message)

        await self.app(scope, receive, guarded)
