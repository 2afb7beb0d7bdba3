"""The application: the routes over one `Server`, and what guards them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from . import routes
from .anthropic import routes as anthropic_routes
from .cohere import routes as cohere_routes
from .ollama import routes as ollama_routes
from .openai import routes as openai_routes
from .openai.responses import routes as responses_routes
from .pool.leases import Leases
from .pool.model_pool import ModelPool
from .state import Server, Settings
from .transport.content_type import JSONBodies
from .transport.guards import BodyGuard, FormGuard, HostGuard, KeyGuard, RestOfBody
from .transport.head_requests import HeadRequests
from .transport.refusals import add_problems, refuse

LARGEST_FORM = 25 * 2**20
"""Bytes of a form with a sound, OpenAI's limit; `--max-body` can only raise it."""


def make_app(pool: ModelPool, settings: Settings | None = None) -> FastAPI:
    """The application that serves the models of a pool."""
    settings = settings or Settings()
    server = Server(pool, settings)

    @contextlib.asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        pool.start()
        yield
        await pool.close()

    # The framework's own pages load scripts from other hosts.
    app = FastAPI(title="onnx-textgen", lifespan=running, docs_url=None, redoc_url=None)
    app.state.server = server
    for module in (routes, openai_routes, responses_routes, cohere_routes, anthropic_routes, ollama_routes):
        module.add_routes(app, server)
    add_problems(app, server.metrics)
    refusing = functools.partial(refuse, server.metrics)
    app.add_middleware(Leases)
    app.add_middleware(JSONBodies)
    app.add_middleware(HeadRequests)
    app.add_middleware(FormGuard, origins=settings.origins, refuse=refusing)
    bodies: dict[str, Any] = {"most": settings.max_body_bytes, "most_of_forms": max(settings.max_body_bytes, LARGEST_FORM)}
    app.add_middleware(BodyGuard, **bodies, seconds=settings.max_body_seconds, refuse=refusing)
    if settings.api_key is not None:
        app.add_middleware(KeyGuard, api_key=settings.api_key, refuse=refusing)
    if settings.origins:
        app.add_middleware(CORSMiddleware, allow_origins=list(settings.origins), allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(HostGuard, names=settings.hosts, refuse=refusing)
    app.add_middleware(RestOfBody)
    return app
