"""What of Gradio's MCP server is reached: calls, at one address.

It has more: an older transport, and a page for browsers that writes the address it was asked by into a script as it stands, so
that a link to it could run a script of others (Gradio 6.31).
"""

from __future__ import annotations

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

MCP_PATH = "/gradio_api/mcp"


class McpGuard:
    """Passes calls on, and all that is not below `MCP_PATH`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 404 or 405."""
        if scope["type"] == "http" and scope["path"].startswith(MCP_PATH):
            if scope["path"].rstrip("/") != MCP_PATH:
                await PlainTextResponse("there is nothing here", 404)(scope, receive, send)
                return
            if scope["method"] != "POST":
                await PlainTextResponse("MCP clients call this by POST", 405, {"Allow": "POST"})(scope, receive, send)
                return
        await self.app(scope, receive, send)
