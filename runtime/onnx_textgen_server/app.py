"""The routes. `schema` reads a request, a `Job` generates its texts, and `answers` formats the result."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from onnx_textgen import Model, OnnxTextgenError
from onnx_textgen.backends.onnxruntime_session import LOG
from onnx_textgen.cli.hosts import LOOPBACK
from onnx_textgen.errors import OptionError
from onnx_textgen.options.checks import shown

from .changed_files import ChangedFiles
from .error_messages import message_for_body, message_for_route
from .guards import BodyGuard, HostGuard, KeyGuard
from .measurements import Metrics
from .openai.chats import Chat
from .openai.completions import Completion
from .openai.delivery import CLOSED_BY_CLIENT, deliver, problem_of
from .openai.embeddings import Embeddings, EmbeddingsRequest
from .openai.jobs import Slots
from .openai.schema import ChatRequest, CompletionRequest, DetokenizeRequest, GenerationRequest, Problem, TokenizeRequest
from .rerank import Rerank, RerankRequest
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


class Server:
    """State that the routes share: models, slots, metrics."""

    def __init__(self, models: Mapping[str, Model], settings: Settings) -> None:
        self.models, self.settings = dict(models), settings
        self.names: dict[str, tuple[str, str | None]] = {name: (name, None) for name in models}
        """Every name that a request may give: the model's own name, and its adapter."""
        for name, model in models.items():
            for adapter in model.adapters:
                self.names.setdefault(f"{name}:{adapter}", (name, adapter))
        self.files = {name: ChangedFiles(model) for name, model in models.items()}
        self.slots = Slots(settings.max_texts)
        self.metrics = Metrics(lambda: self.slots.taken)
        self.started = int(time.time())

    def model(self, name: str | None) -> tuple[str, Model]:
        """The model of a name, or the only model if there is no name. Raises 404, and `ModelError` if its files have changed.

        A model with an adapter is called `NAME:ADAPTER`.
        """
        if name is None and len(self.models) == 1:
            name = next(iter(self.models))
        if name not in self.names:
            raise HTTPException(404, f"there is no model {name!r:.60} here; choose one of: {', '.join(self.names)}")
        own, _ = self.names[name]
        self.files[own].check()
        return name, self.models[own]

    def model_for(self, body: GenerationRequest | EmbeddingsRequest | RerankRequest) -> tuple[str, Model]:
        """`model` for a text; an adapter in the model's name is written to `body.adapter`."""
        name, model = self.model(body.model)
        adapter = self.names[name][1]
        if adapter is not None and body.adapter not in (None, adapter):
            raise OptionError(f"the model {name} has one adapter, and adapter {shown(body.adapter)} is another; leave one out")
        body.adapter = body.adapter if adapter is None else adapter
        return name, model

    def refuse(self, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
        """Count a problem, and return its response in the form that OpenAI's clients read."""
        if problem.status != CLOSED_BY_CLIENT:
            self.metrics.refused.labels(str(problem.status)).inc()
        return JSONResponse(problem.as_json(), problem.status, headers)

    def about(self, name: str) -> dict[str, Any]:
        """One entry of `/v1/models`."""
        own, adapter = self.names[name]
        manifest = self.models[own].manifest
        return {
            "id": name,
            "object": "model",
            "created": self.started,
            "owned_by": "onnx-textgen",
            "max_model_len": manifest.geometry.context_length,
            "precision": manifest.precision,
            **({"parent": own} if adapter is not None else {}),
        }


def make_app(models: Mapping[str, Model], settings: Settings | None = None) -> FastAPI:
    """The application that serves models by the given names."""
    settings = settings or Settings()
    server = Server(models, settings)
    app = FastAPI(title="onnx-textgen", docs_url=None, redoc_url=None)  # those pages load scripts from other hosts
    app.state.server = server
    add_routes(app, server)
    add_problems(app, server)
    app.add_middleware(BodyGuard, most=settings.max_body_bytes, seconds=settings.max_body_seconds, refuse=server.refuse)
    if settings.api_key is not None:
        app.add_middleware(KeyGuard, api_key=settings.api_key, refuse=server.refuse)
    if settings.origins:
        app.add_middleware(CORSMiddleware, allow_origins=list(settings.origins), allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(HostGuard, names=settings.hosts, refuse=server.refuse)
    return app


def add_problems(app: FastAPI, server: Server) -> None:
    """Add the handlers that turn errors into responses."""

    @app.exception_handler(OnnxTextgenError)
    async def our_error(_: Request, error: OnnxTextgenError) -> Response:
        problem = problem_of(error)
        return server.refuse(problem, {"Retry-After": "1"} if problem.status == 429 else None)

    @app.exception_handler(RequestValidationError)
    async def malformed_body(_: Request, error: RequestValidationError) -> Response:
        return server.refuse(Problem(400, message_for_body(error.errors()[0])))

    @app.exception_handler(StarletteHTTPException)
    async def http_error(http: Request, error: StarletteHTTPException) -> Response:
        if error.detail in ("Not Found", "Method Not Allowed"):  # the framework's words for an unknown path or method
            message = message_for_route(error.status_code, http.url.path, (error.headers or {}).get("Allow"))
            return server.refuse(Problem(error.status_code, message), error.headers)
        code = "model_not_found" if error.status_code == 404 and "model" in error.detail else None
        return server.refuse(Problem(error.status_code, error.detail, code=code), error.headers)

    @app.exception_handler(Exception)
    async def unexpected_error(_: Request, error: Exception) -> Response:
        LOG.error("a request failed", exc_info=error)
        return server.refuse(problem_of(error))


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

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(server.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [server.about(name) for name in server.names]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        return server.about(server.model(name)[0])

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        _, model = server.model(body.model)
        with server.slots.held():
            ids = await asyncio.to_thread(token_ids_of, model, body)
        return {"tokens": ids, "count": len(ids), "max_model_len": model.encoder.context_length}

    @app.post("/detokenize")
    def detokenize(body: DetokenizeRequest) -> dict[str, str]:
        _, model = server.model(body.model)
        model.encoder.check_vocabulary(body.tokens)
        return {"prompt": model.tokenizer.decode(body.tokens)}

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, http: Request) -> Response:
        name, model = server.model_for(body)
        make = functools.partial(Completion, name, model, body, server.settings.max_seconds)
        return await deliver(http, make, body.texts, server.slots, server.metrics, streams=bool(body.stream))

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, http: Request) -> Response:
        name, model = server.model_for(body)
        make = functools.partial(Chat, name, model, body, server.settings.max_seconds)
        return await deliver(http, make, body.n or 1, server.slots, server.metrics, streams=bool(body.stream))

    work = WorkQueue(server.slots, server.metrics, server.settings.max_seconds)

    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingsRequest, http: Request) -> Response:
        return await work.answer(http, Embeddings(*server.model_for(body), body))

    @app.post("/v1/rerank")
    @app.post("/v2/rerank", include_in_schema=False)
    @app.post("/rerank", include_in_schema=False)
    async def rerank(body: RerankRequest, http: Request) -> Response:
        return await work.answer(http, Rerank(*server.model_for(body), body))
