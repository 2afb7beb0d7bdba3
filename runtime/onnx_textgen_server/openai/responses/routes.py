"""The routes of `/v1/responses`."""

from __future__ import annotations

import functools
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response as HTTPResponse

from ...serving.delivery import deliver
from ...state import Server
from .response import Response
from .schema import ResponsesRequest
from .store import Store


def add_routes(app: FastAPI, server: Server) -> None:
    """Add the routes."""
    store = Store()

    @app.post("/v1/responses")
    async def responses(body: ResponsesRequest, http: Request) -> HTTPResponse:
        """The next turn of a conversation."""
        conversation = store.conversation(body.previous_response_id)
        body.input = store.resolved(body.input)
        name, model = await server.model_for(http, body)
        make = functools.partial(Response, name, model, body, conversation, server.settings.max_seconds)
        return await deliver(http, make, 1, server.slots, server.metrics, streams=bool(body.stream))

    @app.get("/v1/responses/{response_id}")
    async def one_response(response_id: str) -> dict[str, Any]:
        """A response that was kept."""
        return store.get(response_id).response

    @app.delete("/v1/responses/{response_id}")
    async def delete_response(response_id: str) -> dict[str, Any]:
        """Forget a response."""
        store.delete(response_id)
        return {"id": response_id, "object": "response", "deleted": True}
