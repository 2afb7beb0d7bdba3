"""The routes of Cohere's and Jina's wire format."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from ..state import Server
from .rerank import Rerank, RerankRequest


def add_routes(app: FastAPI, server: Server) -> None:
    """Add the routes."""

    @app.post("/v1/rerank")
    @app.post("/v2/rerank", include_in_schema=False)
    @app.post("/rerank", include_in_schema=False)
    async def rerank(body: RerankRequest, http: Request) -> Response:
        return await server.work.answer(http, Rerank(*await server.model_for(http, body), body))
