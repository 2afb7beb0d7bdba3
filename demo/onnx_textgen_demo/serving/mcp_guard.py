"""Limits access to Gradio's MCP server to calls at one address.

Gradio's server also has an older transport, and a page for browsers that copies the requested address into a script without
escaping, so that a crafted link could run a foreign script (Gradio 6.31).
"""

from __future__ import annotations

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

MCP_PATH = "/gradio_api/mcp"


class McpGuard:
    """Forwards calls, and everything outside `MCP_PATH`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or answer 404 or 405."""
        if scope["type"] == "http" and scope["path"].startswith(MCP_PATH):
            if scope["path"].rstrip("/") != MCP_PATH:
                await PlainTextResponse("there is nothing here", 404)(scope, receive, send)
                return
            if scope["method"] != "POST":
                await PlainTextResponse("MCP clients call this by POST", 405, {"Allow": "POST"})(scope, receive, send)
                return
        await self.app(scope, receive, send)
