"""Middleware for every route: allowed host names, the API key, limits on bodies, and answers to clients that are still sending."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Callable, Collection, Mapping

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..serving.problems import Problem
from .content_type import FORMS

Refuse = Callable[[Scope, Problem, Mapping[str, str]], Response]
"""Makes the response for a problem with a request, with additional headers."""

OPEN = frozenset({"/", "/health"})
"""Paths that need no key: the page that says how to send one, and health checks."""
LINGER = 2.0
"""Seconds for which what is left of a refused body is read."""
HOST_AND_PORT = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]+)(:\d*)?")


class HostGuard:
    """Refuses requests whose Host is not in `names`, unless `names` has `*`."""

    def __init__(self, app: ASGIApp, *, names: Collection[str], refuse: Refuse) -> None:
        self.app, self.names, self.refuse = app, names, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 400."""
        if scope["type"] == "http" and "*" not in self.names:
            found = HOST_AND_PORT.fullmatch(Headers(scope=scope).get("host", ""))
            if found is None or found[1].lower() not in self.names:
                problem = Problem(400, f"this server answers only to the Host {', '.join(self.names)}")
                await self.refuse(scope, problem, {})(scope, receive, send)
                return
        await self.app(scope, receive, send)


class KeyGuard:
    """Refuses requests without the key, except for the paths of `OPEN`."""

    def __init__(self, app: ASGIApp, *, api_key: str, refuse: Refuse) -> None:
        self.app, self.expected, self.refuse = app, api_key.encode(), refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401."""
        is_open = scope["type"] != "http" or scope["path"] in OPEN or scope["method"] == "OPTIONS"
        if not is_open and not any(secrets.compare_digest(key, self.expected) for key in keys_in(Headers(scope=scope))):
            told = "no API key, or a wrong one; send it as: Authorization: Bearer KEY, or x-api-key: KEY"
            problem = Problem(401, told, code="invalid_api_key")
            await self.refuse(scope, problem, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
            return
        await self.app(scope, receive, send)


def keys_in(headers: Headers) -> list[bytes]:
    """The keys that a request gives, in OpenAI's header and in Anthropic's."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    return [key.encode() for key in (bearer.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")) if key]


class RestOfBody:
    """Reads what is left of a body before an answer ends, for at most `LINGER` seconds.

    A connection that is closed with unread bytes is reset, and a client that was still sending loses the answer (RFC 9112, 9.6).
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; its answer is sent at once, and ends after the body."""
        if scope["type"] != "http" or not {"content-length", "transfer-encoding"}.intersection(Headers(scope=scope)):
            await self.app(scope, receive, send)
            return
        is_whole = False

        async def watched() -> Message:
            nonlocal is_whole
            message = await receive()
            is_whole = not message.get("more_body", False)
            return message

        async def send_last_after_body(message: Message) -> None:
            if is_whole or message["type"] != "http.response.body" or message.get("more_body", False):
                await send(message)
                return
            await send({**message, "more_body": True})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER):
                    while not is_whole:
                        await watched()
            await send({"type": "http.response.body", "body": b""})

        await self.app(scope, watched, send_last_after_body)


class TooLargeError(HTTPException):
    """A body longer than the limit."""

    def __init__(self, most: int) -> None:
        super().__init__(413, f"the body has more than {most:,} bytes, the limit of this server; send less")


class TooSlowError(HTTPException):
    """A body that is not complete in time."""

    def __init__(self, seconds: float) -> None:
        detail = f"the body was not complete after {seconds:g} seconds; send it again"
        super().__init__(408, detail, {"Connection": "close"})


class FormGuard:
    """Refuses forms of web pages whose origin may not call the server: before a form, a browser does not ask."""

    def __init__(self, app: ASGIApp, *, origins: Collection[str], refuse: Refuse) -> None:
        self.app, self.origins, self.refuse = app, origins, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403."""
        headers = Headers(scope=scope) if scope["type"] == "http" and scope["path"].startswith(FORMS) else Headers()
        origin = headers.get("origin")
        is_own = origin is not None and origin.partition("://")[2] == headers.get("host")
        if origin is None or is_own or origin in self.origins or "*" in self.origins:
            await self.app(scope, receive, send)
            return
        problem = Problem(403, "pages of this origin may not call the server; serve --allow-origin allows them")
        await self.refuse(scope, problem, {})(scope, receive, send)


class BodyGuard:
    """Refuses bodies of more than `most` bytes, with or without Content-Length, and bodies that take longer than `seconds`.

    `most_of_forms`: of the bodies that have a sound.
    """

    def __init__(self, app: ASGIApp, *, most: int, most_of_forms: int, seconds: float, refuse: Refuse) -> None:
        self.app, self.most_of_json, self.most_of_forms = app, most, most_of_forms
        self.seconds, self.refuse = seconds, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 413 or 408."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        most = self.most_of_forms if scope["path"].startswith(FORMS) else self.most_of_json
        length, seen, is_whole = Headers(scope=scope).get("content-length", ""), 0, False
        end = asyncio.get_running_loop().time() + self.seconds
        if length.isdigit() and int(length) > most:
            problem = Problem(413, TooLargeError(most).detail)
            await self.refuse(scope, problem, {})(scope, receive, send)
            return

        async def counted() -> Message:
            nonlocal seen, is_whole
            try:
                async with asyncio.timeout_at(None if is_whole else end):
                    message = await receive()
            except TimeoutError as error:
                raise TooSlowError(self.seconds) from error  # the app answers it, and the next request
            seen, is_whole = seen + len(message.get("body", b"")), not message.get("more_body", False)
            if seen > most:
                raise TooLargeError(most)
            return message

        await self.app(scope, counted, send)
