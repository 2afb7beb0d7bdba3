"""The routes that belong to no wire format: the page at `/`, health, metrics, and the list of models."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from .anthropic.models import model_info, page_of_models
from .anthropic.wire import VERSION_HEADER
from .home import home_page, routes_of
from .state import Server


def add_routes(app: FastAPI, server: Server) -> None:
    """Add the routes."""

    @app.get("/", include_in_schema=False)
    def home(http: Request) -> Response:
        models = [server.about(name) for name in server.pool.names()] if server.settings.api_key is None else None
        return home_page(str(http.base_url).rstrip("/"), models, routes_of(app))

    @app.get("/health")
    async def health() -> dict[str, str | int]:
        """Report that the server answers, and how many models it has open."""
        return {"status": "ok", "models": len(server.pool.members), "loaded": len(server.pool.loaded)}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Measurements for Prometheus."""
        return Response(server.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models")
    def list_models(http: Request) -> dict[str, Any]:
        """The models."""
        every = [server.about(name) for name in server.pool.names()]
        if VERSION_HEADER in http.headers:
            return page_of_models(every, http.query_params)
        return {"object": "list", "data": every}

    @app.get("/v1/models/{name:path}")
    def one_model(name: str, http: Request) -> dict[str, Any]:
        """One model."""
        about = server.about(name)
        return model_info(about) if VERSION_HEADER in http.headers else about
