"""`POST /api/chat` and `/api/generate`: an answer, and its counts and times."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from onnx_textgen import Model
from onnx_textgen.answers.records import ToolCall, whole_calls
from onnx_textgen.generation.continuation import Continuation
from onnx_textgen.images.in_messages import as_base64

from ..requests.content_parts import functions_among
from ..requests.infill import ends_of_infill
from ..serving.chat_job import ChatCall, ChatJob
from ..serving.jobs import ENDED_EARLY, OWN_ENDS, schema_note
from ..serving.plain_job import PlainJob
from ..serving.problems import Problem
from .conversion import pictures, to_chat
from .schema import ChatRequest, GenerateRequest
from .wire import OLLAMA, problem_as_json

Form = Callable[[str, str, Sequence[ToolCall]], dict[str, Any]]
"""The part of an answer that has text, thinking and calls."""


def now() -> str:
    """The time as Ollama writes it."""
    return datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """A duration as Ollama writes it."""
    return round(seconds * 10**9)


class Answer:
    """The answer to one request."""

    wire = OLLAMA

    def __init__(self, name: str, work: ChatJob | PlainJob, form: Form, operation: str) -> None:
        self.name, self.work, self.form, self.operation = name, work, form, operation
        self.job = work.job

    async def whole(self) -> dict[str, Any]:
        """See `Answer`."""
        ((text, reader),) = await self.work.finish()
        return self.part(reader.text, reader.reasoning, whole_calls(reader.calls)) | ending(text)

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """See `Answer`."""
        (text,), (reader,), begun, told = self.job.continuations, self.work.readers, 0, 0
        async with contextlib.aclosing(self.work.deltas()) as deltas:
            async for _, delta, _ in deltas:
                begun = max([begun, *(part.index + 1 for part in delta.tool_calls)])  # the reader may be ahead of the deltas
                complete = reader.calls[told:begun]
                calls, told = whole_calls(complete), told + len(complete)
                if delta.text or delta.reasoning or calls:
                    yield self.part(delta.text, delta.reasoning, calls)
        yield self.part("", "", ()) | ending(text)

    def part(self, text: str, thinking: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
        """A part of the answer."""
        return {"model": self.name, "created_at": now(), **self.form(text, thinking, calls), "done": False}

    def failed(self, problem: Problem) -> dict[str, Any]:
        """See `Answer`."""
        return problem_as_json(problem)


def ending(text: Continuation) -> dict[str, Any]:
    """The end of an answer, with its counts and times."""
    stats, reason = text.stats(), "stop" if text.finish_reason in OWN_ENDS else "length"
    return {
        "done": True,
        **schema_note(text.finish_reason, text.follows_rule),
        **({} if text.finish_reason in ENDED_EARLY else {"done_reason": reason}),  # Ollama too leaves it out when a text breaks off
        "total_duration": nanoseconds(stats.total_seconds),
        "load_duration": 0,
        "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": nanoseconds(stats.prefill_seconds),
        "eval_count": stats.generated_tokens,
        "eval_duration": nanoseconds(stats.total_seconds - stats.first_token_seconds),
    }


def as_message(text: str, thinking: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """A part of the answer of a chat."""
    functions = [{"id": call.id, "function": {"name": call.name, "arguments": call.arguments}} for call in calls]
    more = ({"thinking": thinking} if thinking else {}) | ({"tool_calls": functions} if functions else {})
    return {"message": {"role": "assistant", "content": text, **more}}


def as_response(text: str, thinking: str, _: Sequence[ToolCall]) -> dict[str, Any]:
    """A part of a text."""
    return {"response": text, **({"thinking": thinking} if thinking else {})}


def answer_chat(name: str, model: Model, body: ChatRequest, max_seconds: float | None) -> Answer:
    """The answer to `/api/chat`; raises `TemplateError`, `PromptError` and `OptionError`."""
    inputs = {"tools": functions_among(body.tools or ())} | body.thinking_inputs(name, thinks=model.chats.thinks)
    messages = to_chat(body.messages, pictures_first=model.manifest.images is not None)
    options = body.options_of_call(model.manifest.geometry.context_length)
    chat = [{"role": "system", "content": body.system}, *messages] if body.system else messages
    call = ChatCall(chat, inputs, options, cache_salt=body.cache_salt, is_shortened=body.truncate)
    return Answer(name, ChatJob(name, model, call, max_seconds), as_message, "chat")


def answer_generate(name: str, model: Model, body: GenerateRequest, max_seconds: float | None) -> Answer:
    """The answer to `/api/generate`; raises `TemplateError`, `PromptError` and `OptionError`."""
    options, salt = body.options_of_call(model.manifest.geometry.context_length), body.cache_salt
    work: ChatJob | PlainJob
    if body.suffix:
        work = PlainJob(
            model, model.encode_infill(body.prompt, body.suffix), options | ends_of_infill(model), max_seconds, cache_salt=salt
        )
    elif body.raw or model.chat_template is None:
        prompt = model.encode(body.prompt, images=[as_base64(each) for each in body.images]) if body.images else body.prompt
        work = PlainJob(model, prompt, options, max_seconds, cache_salt=salt)
    else:
        chat: list[dict[str, Any]] = [{"role": "system", "content": body.system}] if body.system else []
        content = [*pictures(body.images), {"type": "text", "text": body.prompt}] if body.images else body.prompt
        chat.append({"role": "user", "content": content})
        inputs = body.thinking_inputs(name, thinks=model.chats.thinks)
        work = ChatJob(name, model, ChatCall(chat, inputs, options, cache_salt=salt), max_seconds)
    return Answer(name, work, as_response, "text_completion")
