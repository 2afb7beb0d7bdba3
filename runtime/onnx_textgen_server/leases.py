"""Keeps what a request uses until its response is sent, or its client has left."""

from __future__ import annotations

import contextlib
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

T = TypeVar("T")
KEY = "onnx_textgen.leases"


class Leases:
    """Middleware that ends the leases of a request after its response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        async with contextlib.AsyncExitStack() as scope[KEY]:
            await self.app(scope, receive, send)


async def hold(http: Request, resource: AbstractAsyncContextManager[T]) -> T:
    """Enter a context, and leave it when the whole response to `http` is sent or its client has left."""
    stack: contextlib.AsyncExitStack = http.scope[KEY]
    return await stack.enter_async_context(resource)
