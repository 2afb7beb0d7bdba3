"""The routes of Ollama's wire format."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

import onnx_textgen

from ..serving.delivery import deliver
from ..state import Server
from .answer import answer_chat, answer_generate, as_message, as_response, now
from .descriptions import entry, running, show
from .embed import Embed, EmbedRequest
from .schema import ChatRequest, GenerateRequest, ShowRequest

LATEST = ":latest"


def add_routes(app: FastAPI, server: Server) -> None:
    """Add the routes."""

    @app.post("/api/chat")
    async def chat(body: ChatRequest, http: Request) -> Response:
        """The next turn of a chat, for clients of Ollama."""
        body.model = own_name(body.model)
        name, model = await server.model_for(http, body)
        if not body.messages:
            return loaded(name, as_message("", "", ()), body.ending_of_load)
        make = functools.partial(answer_chat, name, model, body, server.settings.max_seconds)
        return await deliver(http, make, 1, server.slots, server.metrics, streams=body.stream)

    @app.post("/api/generate")
    async def generate(body: GenerateRequest, http: Request) -> Response:
        """A text after a prompt, for clients of Ollama."""
        body.model = own_name(body.model)
        name, model = await server.model_for(http, body)
        if not body.prompt and not body.suffix:
            return loaded(name, as_response("", "", ()), body.ending_of_load)
        make = functools.partial(answer_generate, name, model, body, server.settings.max_seconds)
        return await deliver(http, make, 1, server.slots, server.metrics, streams=body.stream)

    @app.post("/api/embed")
    async def embed(body: EmbedRequest, http: Request) -> Response:
        """Texts as vectors, for clients of Ollama."""
        body.model = own_name(body.model)
        return await server.work.answer(http, Embed(*await server.model_for(http, body), body))

    @app.get("/api/tags")
    def tags() -> dict[str, Any]:
        """The models, for clients of Ollama."""
        return {"models": [entry(server.about(name)) for name in server.pool.names()]}

    @app.get("/api/ps")
    def ps() -> dict[str, Any]:
        """The open models, for clients of Ollama."""
        every = [server.about(name) for name in server.pool.names()]
        return {"models": [running(about) for about in every if about["status"]["value"] == "loaded"]}

    @app.post("/api/show")
    async def show_model(body: ShowRequest, http: Request) -> dict[str, Any]:
        """One model, for clients of Ollama."""
        name, model = await server.model(http, own_name(body.model or body.name))
        return await asyncio.to_thread(show, server.about(name), model)

    @app.get("/api/version")
    async def version() -> dict[str, str]:
        """The version of this server, for clients of Ollama."""
        return {"version": onnx_textgen.__version__}


def own_name(name: str | None) -> str | None:
    """The name of a model without the tag that Ollama's clients add."""
    return None if name is None else name.removesuffix(LATEST)


def loaded(name: str, content: dict[str, Any], reason: str) -> Response:
    """The answer to a request that has nothing to answer, by which clients load and unload models."""
    return JSONResponse({"model": name, "created_at": now(), **content, "done": True, "done_reason": reason})
