"""`POST /v1/responses`: the next turn of a conversation."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from onnx_textgen import Model
from onnx_textgen.answers.records import AnswerDelta, ToolCallDelta, message_of

from ...requests.turns import append_message
from ...serving.chat_job import ChatCall, ChatJob
from ...serving.jobs import ENDED_EARLY, OWN_ENDS, schema_note
from ...serving.problems import Problem
from ...serving.wire import WireFormat, server_sent
from ..wire import OPENAI, problem_as_json
from .conversion import to_chat
from .output import RESPONSE, Output
from .schema import ResponsesRequest
from .store import Conversation

RESPONSES = WireFormat(problem_as_json, lambda event: server_sent(event, name=event["type"]), ping=OPENAI.ping)


class Response:
    """The answer to one request."""

    wire, operation = RESPONSES, "chat"

    def __init__(
        self, name: str, model: Model, body: ResponsesRequest, conversation: Conversation, max_seconds: float | None
    ) -> None:
        """Raises `TemplateError`, `PromptError` and `OptionError`."""
        self.name, self.body, self.conversation = name, body, conversation
        self.id, self.created = f"{RESPONSE}{uuid.uuid4().hex}", int(time.time())
        self.output = Output(self.id)
        self.history = to_chat(body.input, conversation.before)
        chat = [{"role": "system", "content": body.instructions}] if body.instructions else []
        for message in self.history:
            append_message(chat, message)
        inputs, options = body.turn_inputs(thinks=model.chats.thinks), body.options_of_call(model.manifest.geometry.context_length)
        call = ChatCall(chat, inputs, options, cache_salt=body.cache_salt, is_shortened=body.truncation == "auto")
        self.chat = ChatJob(name, model, call, max_seconds)
        self.job = self.chat.job

    async def whole(self) -> dict[str, Any]:
        """See `Answer`."""
        ((_, reader),) = await self.chat.finish()
        calls = (ToolCallDelta(index, call.arguments_json, call.id, call.name) for index, call in enumerate(reader.calls))
        list(self.output.push(AnswerDelta(reader.text, reader.reasoning, tuple(calls))))
        list(self.output.finish(is_cut=self.is_cut))
        return await self.done()

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """See `Answer`."""
        yield self.output.event("created", response=self.response("in_progress"))
        yield self.output.event("in_progress", response=self.response("in_progress"))
        async with contextlib.aclosing(self.chat.deltas()) as deltas:
            async for _, delta, _ in deltas:
                for event in self.output.push(delta):
                    yield event
        for event in self.output.finish(is_cut=self.is_cut):
            yield event
        yield self.output.event("incomplete" if self.is_cut else "completed", response=await self.done())

    def failed(self, problem: Problem) -> dict[str, Any]:
        """See `Answer`."""
        code = "server_error" if problem.status >= 500 else problem.code or "invalid_prompt"
        error = {"code": code, "message": problem.message}
        return self.output.event("failed", response=self.response("failed") | {"error": error})

    @property
    def is_cut(self) -> bool:
        """Whether the answer ended before its own end."""
        return self.job.continuations[0].finish_reason not in OWN_ENDS

    async def done(self) -> dict[str, Any]:
        """The finished response, which is kept if the request allows it."""
        is_cut, (text,) = self.is_cut, self.job.continuations
        reason = text.finish_reason
        cut = {"stop_reason": reason} if reason in ENDED_EARLY else {"reason": "max_output_tokens"}  # OpenAI has no such `reason`
        details = cut if is_cut else None
        response = self.response("incomplete" if is_cut else "completed")
        response |= {"incomplete_details": details, "completed_at": int(time.time()), "usage": await self.usage()}
        response |= schema_note(reason, text.follows_rule)
        if self.body.store is not False:
            (reader,) = self.chat.readers
            append_message(self.history, message_of(reader.text, reader.reasoning, reader.calls))
            self.conversation.store.add(response, self.history)
        return response

    async def usage(self) -> dict[str, Any]:
        """Token counts."""
        (text,) = self.job.continuations
        return {
            "input_tokens": len(text.prompt_ids),
            "input_tokens_details": {"cached_tokens": text.reused_tokens, "cache_write_tokens": 0},
            "output_tokens": len(text.token_ids),
            "output_tokens_details": {"reasoning_tokens": await self.chat.thinking_tokens()},
            "total_tokens": len(text.prompt_ids) + len(text.token_ids),
        }

    def response(self, status: str) -> dict[str, Any]:
        """The response so far."""
        body, config = self.body, self.job.continuations[0].config
        form = body.text.format.model_dump(by_alias=True, exclude_none=True) if body.text and body.text.format else {"type": "text"}
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.name,
            "output": list(self.output.items),
            "usage": None,
            "instructions": body.instructions,
            "previous_response_id": body.previous_response_id,
            "store": body.store is not False,
            "background": False,
            "metadata": body.metadata or {},
            "max_output_tokens": None if body.max_output_tokens == -1 else body.max_output_tokens,
            "temperature": config.temperature,
            "top_p": config.top_p,
            "text": {"format": form},
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "tools": body.tools,
            "tool_choice": body.tool_choice or "auto",
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "truncation": body.truncation,
        }
