"""The routes of Anthropic's wire format."""

from __future__ import annotations

import asyncio
import functools

from fastapi import FastAPI, Request
from starlette.responses import Response

from ..serving.delivery import deliver
from ..state import Server
from .messages import Message, count_tokens
from .schema import CountRequest, MessagesRequest


def add_routes(app: FastAPI, server: Server) -> None:
    """Add the routes."""

    @app.post("/v1/messages")
    async def messages(body: MessagesRequest, http: Request) -> Response:
        """The next turn of a chat, for clients of Anthropic."""
        name, model = await server.model_for(http, body)
        make = functools.partial(Message, name, model, body, server.settings.max_seconds)
        return await deliver(http, make, 1, server.slots, server.metrics, streams=bool(body.stream))

    @app.post("/v1/messages/count_tokens")
    async def tokens_of_messages(body: CountRequest, http: Request) -> dict[str, int]:
        """The length of a prompt, for clients of Anthropic."""
        _, model = await server.model_for(http, body)
        with server.slots.held():
            return {"input_tokens": await asyncio.to_thread(count_tokens, model, body)}
