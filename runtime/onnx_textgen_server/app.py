"""The routes. `schema` reads a request, a `Job` generates its texts, and `answers` formats the result."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from onnx_textgen import Model, OnnxTextgenError
from onnx_textgen.backends.onnxruntime_session import LOG
from onnx_textgen.cli.hosts import LOOPBACK
from onnx_textgen.errors import OptionError
from onnx_textgen.options.checks import shown

from .anthropic.models import model_info, page_of_models
from .anthropic.routes import add_routes as add_anthropic_routes
from .anthropic.wire import VERSION_HEADER
from .error_messages import message_for_body, message_for_route
from .guards import BodyGuard, HostGuard, KeyGuard, RestOfBody
from .home import home_page, routes_of
from .leases import Leases, hold
from .measurements import Metrics
from .member import Member
from .models import ModelPool
from .ollama.routes import add_routes as add_ollama_routes
from .openai.chats import Chat
from .openai.completions import Completion
from .openai.embeddings import Embeddings, EmbeddingsRequest
from .openai.responses.routes import add_routes as add_responses_routes
from .openai.schema import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from .rerank import Rerank, RerankRequest
from .serving.delivery import deliver
from .serving.jobs import Slots
from .serving.problems import CLOSED_BY_CLIENT, Problem, problem_of
from .sources import Description
from .wire_formats import wire_format_of
from .work_queue import WorkQueue


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Limits and access rules of a server."""

    api_key: str | None = None
    max_texts: int = 128
    """Texts that may run or wait, over all clients; more are refused with 429."""
    max_seconds: float | None = 600.0
    """A text ends after this time, whatever its request says."""
    max_body_bytes: int = 4 * 2**20
    max_body_seconds: float = 30.0
    hosts: Sequence[str] = LOOPBACK
    """Host names that the server answers to, as in URLs."""
    origins: Sequence[str] = ()
    """Origins of web pages that may call the server from a browser."""


class TextRequest(Protocol):
    """A body that names a model and perhaps an adapter."""

    model: str | None
    adapter: str | None


class Server:
    """State that the routes share: models, slots, metrics."""

    def __init__(self, pool: ModelPool, settings: Settings) -> None:
        self.pool, self.settings = pool, settings
        self.slots = Slots(settings.max_texts)
        self.metrics = Metrics(lambda: self.slots.taken, lambda: len(pool.loaded))
        self.work = WorkQueue(self.slots, self.metrics, settings.max_seconds)
        pool.on_open, pool.on_close = self.metrics.opened, self.metrics.closed
        self.started = int(time.time())

    def find(self, name: str | None) -> tuple[str, Member, str | None]:
        """The name, the model and the adapter that a name means, or the only model if there is no name; raises 404.

        A model with an adapter is called `NAME:ADAPTER`.
        """
        if name is None and len(self.pool.members) == 1:
            name = next(iter(self.pool.members))
        found = None if name is None else self.pool.find(name)
        if name is None or found is None:
            raise HTTPException(404, f"there is no model {name!r:.60} here; choose one of: {', '.join(self.pool.names())}")
        return name, *found

    async def model(self, http: Request, name: str | None) -> tuple[str, Model]:
        """A model by `find`, opened if necessary.

        It stays open until the response to `http` begins, or its client has left; that of `deliver` until the texts have ended.
        Raises 404, and the errors of `ModelPool.use`.
        """
        name, member, _ = self.find(name)
        return name, await hold(http, self.pool.use(member.name))

    async def model_for(self, http: Request, body: TextRequest) -> tuple[str, Model]:
        """`model` for a text; an adapter in the model's name is written to `body.adapter`."""
        name, _, adapter = self.find(body.model)
        if adapter is not None and body.adapter not in (None, adapter):
            raise OptionError(f"the model {name} has one adapter, and adapter {shown(body.adapter)} is another; leave one out")
        body.adapter = body.adapter if adapter is None else adapter
        return await self.model(http, name)

    def refuse(self, scope: Scope, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
        """Count a problem, and return its response in the form that the client reads."""
        if problem.status != CLOSED_BY_CLIENT:
            self.metrics.refused.labels(str(problem.status)).inc()
        return JSONResponse(wire_format_of(scope).problem(problem), problem.status, headers)

    def about(self, name: str) -> dict[str, Any]:
        """One entry of `/v1/models`; no model is opened for it."""
        name, member, adapter = self.find(name)
        status = member.status()
        description = Description() if status.get("failed") else member.description()
        return {
            "id": name,
            "object": "model",
            "created": self.started,
            "owned_by": "onnx-textgen",
            "max_model_len": description.context_length,
            "architecture": "encoder-decoder" if description.is_encoder_decoder else "decoder",
            **({"max_source_len": description.source_length} if description.is_encoder_decoder else {}),
            "precision": description.precision,
            "size_bytes": description.size_bytes,
            "digest": description.digest,
            "status": status,
            **({"parent": member.name} if adapter is not None else {}),
        }


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
    add_routes(app, server)
    add_responses_routes(app, server)
    add_anthropic_routes(app, server)
    add_ollama_routes(app, server)
    add_problems(app, server)
    app.add_middleware(Leases)
    app.add_middleware(BodyGuard, most=settings.max_body_bytes, seconds=settings.max_body_seconds, refuse=server.refuse)
    if settings.api_key is not None:
        app.add_middleware(KeyGuard, api_key=settings.api_key, refuse=server.refuse)
    if settings.origins:
        app.add_middleware(CORSMiddleware, allow_origins=list(settings.origins), allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(HostGuard, names=settings.hosts, refuse=server.refuse)
    app.add_middleware(RestOfBody)
    return app


def add_problems(app: FastAPI, server: Server) -> None:
    """Add the handlers that turn errors into responses."""

    @app.exception_handler(OnnxTextgenError)
    async def our_error(http: Request, error: OnnxTextgenError) -> Response:
        problem = problem_of(error)
        return server.refuse(http.scope, problem, {"Retry-After": "1"} if problem.status == 429 else None)

    @app.exception_handler(RequestValidationError)
    async def malformed_body(http: Request, error: RequestValidationError) -> Response:
        field = http.scope["route"].body_field
        message = message_for_body(error.errors()[0], field and field.field_info.annotation)
        return server.refuse(http.scope, Problem(400, message))

    @app.exception_handler(StarletteHTTPException)
    async def http_error(http: Request, error: StarletteHTTPException) -> Response:
        if error.detail in ("Not Found", "Method Not Allowed"):  # the framework's words for an unknown path or method
            message = message_for_route(error.status_code, http.url.path, (error.headers or {}).get("Allow"))
            return server.refuse(http.scope, Problem(error.status_code, message), error.headers)
        code = "model_not_found" if error.status_code == 404 and "model" in error.detail else None
        return server.refuse(http.scope, Problem(error.status_code, error.detail, code), error.headers)

    @app.exception_handler(Exception)
    async def unexpected_error(http: Request, error: Exception) -> Response:
        LOG.error("a request failed", exc_info=error)
        return server.refuse(http.scope, problem_of(error))


def token_ids_of(model: Model, body: TokenizeRequest) -> list[int]:
    """A text or a chat as ids; raises `PromptError` for a text of more characters than any context holds."""
    if body.messages is not None and body.prompt is None:
        return model.encode_chat([message.as_data() for message in body.messages], **body.template_inputs())
    if body.prompt is None or body.messages is not None:
        raise OptionError("tokenize needs either prompt or messages; give one of them")
    model.encoder.check_characters(body.prompt)
    return model.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens)


def add_routes(app: FastAPI, server: Server) -> None:
    """Add the routes."""

    @app.get("/", include_in_schema=False)
    def home(http: Request) -> Response:
        models = [server.about(name) for name in server.pool.names()] if server.settings.api_key is None else None
        return home_page(str(http.base_url).rstrip("/"), models, routes_of(app))

    @app.get("/health")
    async def health() -> dict[str, str | int]:
        """Whether the server answers, and how many models it has open."""
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

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest, http: Request) -> dict[str, Any]:
        """From a text or a chat to token ids."""
        _, model = await server.model(http, body.model)
        with server.slots.held():
            ids = await asyncio.to_thread(token_ids_of, model, body)
        return {"tokens": ids, "count": len(ids), "max_model_len": model.encoder.context_length}

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, http: Request) -> dict[str, str]:
        """From token ids to a text."""
        _, model = await server.model(http, body.model)
        model.encoder.check_vocabulary(body.tokens)
        return {"prompt": await asyncio.to_thread(model.tokenizer.decode, body.tokens)}

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, http: Request) -> Response:
        """Texts that continue prompts, or that an encoder-decoder writes for sources."""
        name, model = await server.model_for(http, body)
        make = functools.partial(Completion, name, model, body, server.settings.max_seconds)
        return await deliver(http, make, body.texts, server.slots, server.metrics, streams=bool(body.stream))

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, http: Request) -> Response:
        """The next turn of a chat."""
        name, model = await server.model_for(http, body)
        make = functools.partial(Chat, name, model, body, server.settings.max_seconds)
        return await deliver(http, make, body.n or 1, server.slots, server.metrics, streams=bool(body.stream))

    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingsRequest, http: Request) -> Response:
        return await server.work.answer(http, Embeddings(*await server.model_for(http, body), body))

    @app.post("/v1/rerank")
    @app.post("/v2/rerank", include_in_schema=False)
    @app.post("/rerank", include_in_schema=False)
    async def rerank(body: RerankRequest, http: Request) -> Response:
        return await server.work.answer(http, Rerank(*await server.model_for(http, body), body))
