"""The routes of OpenAI's wire format, and those for token ids that other servers have too."""

from __future__ import annotations

import asyncio
import functools
from typing import Any, Literal

from fastapi import FastAPI, Request
from starlette.responses import Response

from onnx_textgen import Model
from onnx_textgen.errors import OptionError
from onnx_textgen.text.prompts import check_characters, check_vocabulary

from ..serving.delivery import deliver
from ..state import Server
from .audio import TYPES, Heard, described, read_form
from .chats import Chat
from .completions import Completion
from .embeddings import Embeddings, EmbeddingsRequest
from .schema import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest


def token_ids_of(model: Model, body: TokenizeRequest) -> list[int]:
    """A text or a chat as ids; raises `PromptError` for a text of more characters than any context holds."""
    if body.messages is not None and body.prompt is None:
        return model.encode_chat([message.as_data() for message in body.messages], **body.template_inputs())
    if body.prompt is None or body.messages is not None:
        raise OptionError("tokenize needs either prompt or messages; give one of them")
    check_characters(body.prompt, model.manifest.geometry.context_length)
    return model.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens)


def add_routes(app: FastAPI, server: Server) -> None:
    """Add the routes."""

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest, http: Request) -> dict[str, Any]:
        """From a text or a chat to token ids."""
        _, model = await server.model(http, body.model)
        with server.slots.held():
            ids = await asyncio.to_thread(token_ids_of, model, body)
        return {"tokens": ids, "count": len(ids), "max_model_len": model.manifest.geometry.context_length}

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, http: Request) -> dict[str, str]:
        """From token ids to a text."""
        _, model = await server.model(http, body.model)
        check_vocabulary(body.tokens, model.manifest.geometry.vocab_size)
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

    @app.post("/v1/audio/transcriptions", openapi_extra=described())
    async def transcriptions(http: Request) -> Response:
        """What is said in a sound."""
        return await heard(http, "transcribe")

    @app.post("/v1/audio/translations", openapi_extra=described())
    async def translations(http: Request) -> Response:
        """The same in English."""
        return await heard(http, "translate")

    async def heard(http: Request, task: Literal["transcribe", "translate"]) -> Response:
        body, sound = await read_form(http)
        work = Heard(*await server.model_for(http, body), body, sound, task)
        return await server.work.answer(http, work, TYPES.get(body.response_format, "text/plain"))

    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingsRequest, http: Request) -> Response:
        return await server.work.answer(http, Embeddings(*await server.model_for(http, body), body))
