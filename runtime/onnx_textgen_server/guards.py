"""What stands before every route: a key, a limit on bodies."""

from __future__ import annotations

import secrets

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .schema import Problem

OPEN = frozenset({"/health"})
"""Answered without a key: what watches over the server has none."""


class KeyGuard:
    """Refuses requests without the key, everywhere but at `OPEN`."""

    def __init__(self, app: ASGIApp, *, api_key: str) -> None:
        self.app, self.expected = app, api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401."""
        if scope["type"] == "http" and scope["path"] not in OPEN and scope["method"] != "OPTIONS":
            scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not secrets.compare_digest(given.strip().encode(), self.expected):
                problem = Problem(401, "no API key, or a wrong one; send it as: Authorization: Bearer KEY", code="invalid_api_key")
                await JSONResponse(problem.as_json(), 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
                return
        await self.app(scope, receive, send)


class TooLargeError(HTTPException):
    """A body that is longer than the server takes."""

    def __init__(self, most: int) -> None:
        super().__init__(413, f"the body has more than {most:,} bytes, which is all this server takes; send less")


class BodyGuard:
    """Refuses bodies of more bytes than `most`, also those that do not say their length."""

    def __init__(self, app: ASGIApp, *, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 413."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length, seen = Headers(scope=scope).get("content-length", ""), 0
        if length.isdigit() and int(length) > self.most:
            error = TooLargeError(self.most)
            answer = JSONResponse(Problem(413, error.detail).as_json(), 413, {"Connection": "close"})
            await answer(scope, receive, send)
            return

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.most:
                raise TooLargeError(self.most)  # the app answers it
            return message

        await self.app(scope, counted, send)
