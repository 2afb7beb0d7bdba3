"""Keeps what a request uses until its answer is computed: a response that is being sent holds nothing, whoever reads it."""

from __future__ import annotations

import contextlib
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

T = TypeVar("T")
KEY = "onnx_textgen.leases"


class Leases:
    """Middleware that ends the leases of a request when its response begins, or its client has left.

    A stream, which computes while it is sent, takes them over.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        async with contextlib.AsyncExitStack() as leases:
            scope[KEY] = leases

            async def send_without(message: Message) -> None:
                if message["type"] == "http.response.start":
                    await leases.aclose()
                await send(message)

            await self.app(scope, receive, send_without)


async def hold(http: Request, resource: AbstractAsyncContextManager[T]) -> T:
    """Enter a context, and leave it when the response to `http` begins or its client has left."""
    stack: contextlib.AsyncExitStack = http.scope[KEY]
    return await stack.enter_async_context(resource)


def taken_over(http: Request) -> contextlib.AsyncExitStack:
    """The leases of a request, which end when the caller closes them."""
    stack: contextlib.AsyncExitStack = http.scope[KEY]
    return stack.pop_all()
