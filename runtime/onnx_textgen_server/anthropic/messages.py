"""`POST /v1/messages`: the next turn of a chat."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from onnx_textgen import Model
from onnx_textgen.answers.answer_reader import AnswerReader
from onnx_textgen.answers.records import whole_calls
from onnx_textgen.generation.continuation import Continuation

from ..serving.chat_job import ChatCall, ChatJob
from ..serving.jobs import ENDED_EARLY, OWN_ENDS, schema_note
from ..serving.problems import Problem
from .blocks import Blocks, content_of
from .conversion import to_chat
from .schema import CountRequest, MessagesRequest
from .wire import ANTHROPIC, problem_as_json


def count_tokens(model: Model, body: CountRequest) -> int:
    """The tokens of a prompt; raises `TemplateError`, `PromptError` and `OptionError`."""
    chat, continues = to_chat(body)
    return len(model.chats.turn(chat, continue_final_message=continues, **body.turn_inputs(thinks=model.chats.thinks)).prompt_ids)


class Message:
    """The answer to one request."""

    wire, operation = ANTHROPIC, "chat"

    def __init__(self, name: str, model: Model, body: MessagesRequest, max_seconds: float | None) -> None:
        """Raises `TemplateError`, `PromptError` and `OptionError`."""
        self.name, self.body, self.id = name, body, f"msg_{uuid.uuid4().hex}"
        chat, continues = to_chat(body)
        inputs = body.turn_inputs(thinks=model.chats.thinks) | {"continue_final_message": continues}
        self.chat = ChatJob(name, model, ChatCall(chat, inputs, body.options_of_call(), cache_salt=body.cache_salt), max_seconds)
        self.job = self.chat.job

    async def whole(self) -> dict[str, Any]:
        """See `Answer`."""
        ((text, reader),) = await self.chat.finish()
        content = content_of(reader, shows_thinking=self.body.shows_thinking)
        note = schema_note(text.finish_reason, text.follows_rule)
        return self.message(content, await self.usage(text), **ending(text, reader)) | note

    def message(
        self, content: list[dict[str, Any]], usage: dict[str, Any], *, stop_reason: str | None, stop_sequence: str | None
    ) -> dict[str, Any]:
        """The answer, or its empty beginning."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.name,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": usage,
        }

    async def usage(self, text: Continuation) -> dict[str, Any]:
        """Token counts; those of the prompt are divided into what was computed and what came from the cache."""
        return {
            "input_tokens": len(text.prompt_ids) - text.reused_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": text.reused_tokens,
            "output_tokens": len(text.token_ids),
            "output_tokens_details": {"thinking_tokens": await self.chat.thinking_tokens()},
        }

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """See `Answer`."""
        (text,), (reader,) = self.job.continuations, self.chat.readers
        beginning = self.message([], await self.usage(text), stop_reason=None, stop_sequence=None)
        yield {"type": "message_start", "message": beginning}
        yield {"type": "ping"}
        blocks = Blocks(shows_thinking=self.body.shows_thinking)
        async with contextlib.aclosing(self.chat.deltas()) as deltas:
            async for _, delta, _ in deltas:
                for event in blocks.push(delta):
                    yield event
        for event in blocks.close():
            yield event
        note = schema_note(text.finish_reason, text.follows_rule)
        yield {"type": "message_delta", "delta": ending(text, reader) | note, "usage": await self.usage(text)}
        yield {"type": "message_stop"}

    def failed(self, problem: Problem) -> dict[str, Any]:
        """See `Answer`."""
        return problem_as_json(problem)


def ending(text: Continuation, reader: AnswerReader) -> dict[str, str | None]:
    """Why an answer ended."""
    stop = text.stops.matched
    if stop is not None:
        reason = "stop_sequence"
    elif text.finish_reason in OWN_ENDS:
        reason = "tool_use" if whole_calls(reader.calls) else "end_turn"
    elif text.finish_reason in ENDED_EARLY:
        reason = "pause_turn"  # the client may send the answer back, to be continued
    else:
        reason = "model_context_window_exceeded" if text.finish_reason == "context" else "max_tokens"
    return {"stop_reason": reason, "stop_sequence": stop}
