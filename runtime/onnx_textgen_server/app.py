"""The routes. What a client asks for is read by `schema`, runs as a `Job`, and is told as `answers` says."""

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

from .chats import Chat
from .completions import Completion
from .delivery import CLOSED_BY_CLIENT, deliver, problem_of
from .faults import fault_of_body, fault_of_route
from .file_watch import FileWatch
from .guards import BodyGuard, HostGuard, KeyGuard
from .jobs import Slots
from .metrics import Metrics
from .schema import ChatRequest, CompletionRequest, DetokenizeRequest, Problem, TokenizeRequest


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What a server allows."""

    api_key: str | None = None
    most_texts: int = 128
    """Texts at work or waiting, over all clients; more are refused with 429."""
    most_seconds: float | None = 600.0
    """After which a text ends, whatever its request says."""
    most_body_bytes: int = 4 * 2**20
    most_body_seconds: float = 30.0
    hosts: Sequence[str] = LOOPBACK
    """Names that the server answers to, as URLs have them."""
    origins: Sequence[str] = ()
    """Web pages that may call the server from a browser."""


class Server:
    """What the routes share: the models, the slots, the numbers."""

    def __init__(self, models: Mapping[str, Model], settings: Settings) -> None:
        self.models, self.settings = dict(models), settings
        self.watches = {name: FileWatch(model) for name, model in models.items()}
        self.slots = Slots(settings.most_texts)
        self.metrics = Metrics(lambda: self.slots.taken)
        self.started = int(time.time())

    def model(self, name: str | None) -> tuple[str, Model]:
        """The model of a name; the only one where no name is given. Raises 404, and `ModelError` where its files have changed."""
        if name is None and len(self.models) == 1:
            name = next(iter(self.models))
        if name not in self.models:
            raise HTTPException(404, f"there is no model {name!r:.60} here; there is {', '.join(self.models)}")
        self.watches[name].check()
        return name, self.models[name]

    def refuse(self, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
        """The answer that tells a problem in the form that OpenAI's clients read; it is counted."""
        if problem.status != CLOSED_BY_CLIENT:
            self.metrics.refused.labels(str(problem.status)).inc()
        return JSONResponse(problem.as_json(), problem.status, headers)

    def about(self, name: str) -> dict[str, Any]:
        """One entry of `/v1/models`."""
        manifest = self.models[name].manifest
        return {
            "id": name,
            "object": "model",
            "created": self.started,
            "owned_by": "onnx-textgen",
            "max_model_len": manifest.geometry.context_length,
            "precision": manifest.precision,
        }


def make_app(models: Mapping[str, Model], settings: Settings | None = None) -> FastAPI:
    """The server of some models, by the names that clients call them."""
    settings = settings or Settings()
    server = Server(models, settings)
    app = FastAPI(title="onnx-textgen", docs_url=None, redoc_url=None)  # those pages fetch scripts from elsewhere
    app.state.server = server
    add_routes(app, server)
    add_problems(app, server)
    app.add_middleware(BodyGuard, most=settings.most_body_bytes, seconds=settings.most_body_seconds, refuse=server.refuse)
    if settings.api_key is not None:
        app.add_middleware(KeyGuard, api_key=settings.api_key, refuse=server.refuse)
    if settings.origins:
        app.add_middleware(CORSMiddleware, allow_origins=list(settings.origins), allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(HostGuard, names=settings.hosts, refuse=server.refuse)
    return app


def add_problems(app: FastAPI, server: Server) -> None:
    """Errors of every kind."""

    @app.exception_handler(OnnxTextgenError)
    async def ours(_: Request, error: OnnxTextgenError) -> Response:
        problem = problem_of(error)
        return server.refuse(problem, {"Retry-After": "1"} if problem.status == 429 else None)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        return server.refuse(Problem(400, fault_of_body(error.errors()[0])))

    @app.exception_handler(StarletteHTTPException)
    async def known(http: Request, error: StarletteHTTPException) -> Response:
        if error.detail in ("Not Found", "Method Not Allowed"):  # the framework's own words, of a path that is no route
            said = fault_of_route(error.status_code, http.url.path, (error.headers or {}).get("Allow"))
            return server.refuse(Problem(error.status_code, said), error.headers)
        code = "model_not_found" if error.status_code == 404 and "model" in error.detail else None
        return server.refuse(Problem(error.status_code, error.detail, code=code), error.headers)

    @app.exception_handler(Exception)
    async def unknown(_: Request, error: Exception) -> Response:
        LOG.error("a request failed", exc_info=error)
        return server.refuse(problem_of(error))


def token_ids_of(model: Model, wish: TokenizeRequest) -> list[int]:
    """A text or a chat as ids; raises `PromptError` for a text so long that the model takes none of its length."""
    if wish.messages is not None and wish.prompt is None:
        return model.encode_chat([message.as_data() for message in wish.messages])
    if wish.prompt is None or wish.messages is not None:
        raise OptionError("tokenize takes a prompt or messages; give one of them")
    model.encoder.check_characters(wish.prompt)
    return model.tokenizer.encode(wish.prompt, add_special_tokens=wish.add_special_tokens)


def add_routes(app: FastAPI, server: Server) -> None:
    """All that the server answers."""

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(server.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [server.about(name) for name in server.models]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        return server.about(server.model(name)[0])

    @app.post("/tokenize")
    async def tokenize(wish: TokenizeRequest) -> dict[str, Any]:
        _, model = server.model(wish.model)
        with server.slots.held():
            ids = await asyncio.to_thread(token_ids_of, model, wish)
        return {"tokens": ids, "count": len(ids), "max_model_len": model.encoder.context_length}

    @app.post("/detokenize")
    def detokenize(wish: DetokenizeRequest) -> dict[str, str]:
        _, model = server.model(wish.model)
        model.encoder.check_vocabulary(wish.tokens)
        return {"prompt": model.tokenizer.decode(wish.tokens)}

    @app.post("/v1/completions")
    async def completions(wish: CompletionRequest, http: Request) -> Response:
        name, model = server.model(wish.model)
        make = functools.partial(Completion, name, model, wish, server.settings.most_seconds)
        return await deliver(http, make, wish.texts, server.slots, server.metrics, streams=bool(wish.stream))

    @app.post("/v1/chat/completions")
    async def chat_completions(wish: ChatRequest, http: Request) -> Response:
        name, model = server.model(wish.model)
        make = functools.partial(Chat, name, model, wish, server.settings.most_seconds)
        return await deliver(http, make, wish.n or 1, server.slots, server.metrics, streams=bool(wish.stream))
