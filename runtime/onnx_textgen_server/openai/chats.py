"""`POST /v1/chat/completions`: the next turn of a chat, rendered by the model's template."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from onnx_textgen import Chunk, Model
from onnx_textgen.answers.answer_reader import AnswerReader
from onnx_textgen.answers.records import AnswerDelta, ToolCallDelta, call_as_json, whole_calls
from onnx_textgen.generation.continuation import Continuation

from ..serving.chat_job import ChatCall, ChatJob
from ..serving.problems import Problem
from .answers import Envelope, TokenFormatter, ending, fingerprint, usage
from .schema import ChatRequest
from .wire import OPENAI, problem_as_json


class Chat:
    """The answer to one request."""

    wire, operation = OPENAI, "chat"

    def __init__(self, name: str, model: Model, body: ChatRequest, max_seconds: float | None) -> None:
        """Raises `TemplateError`, `PromptError` and `OptionError`."""
        self.name, self.body = name, body
        messages = [message.as_data() for message in body.messages]
        options = body.options_of_call(model.manifest.geometry.context_length)
        self.chat = ChatJob(
            name,
            model,
            ChatCall(messages, body.turn_inputs(thinks=model.chats.thinks), options, body.n or 1, body.cache_salt),
            max_seconds,
        )
        self.job = self.chat.job
        self.envelope, self.tokens = Envelope("chat.completion", name, fingerprint(model)), TokenFormatter(model)

    async def whole(self) -> dict[str, Any]:
        """See `Answer`."""
        choices = list[dict[str, Any]]()
        for index, (each, reader) in enumerate(await self.chat.finish()):
            message: dict[str, Any] = {"role": "assistant", "content": reader.text, "refusal": None}
            if reader.calls:
                calls = [call.as_json() for call in reader.calls]
                called = {"function_call": calls[0]["function"]} if self.body.functions else {"tool_calls": calls}
                message |= {"content": reader.text or None, **called}
            if reader.reasoning:
                message |= {"reasoning_content": reader.reasoning, "reasoning": reader.reasoning}
            logprobs = self.logprobs(each.token_ids, each.logprobs, each.alternatives)
            reason = self.ending(each, reader)
            choices.append({"index": index, "message": message, "logprobs": logprobs, **reason})
        return self.envelope.wrap(choices, usage=usage(self.job))

    def ending(self, text: Continuation | Chunk, reader: AnswerReader) -> dict[str, Any]:
        """Why an answer ended; with a call, in the form in which the request has its tools."""
        found = ending(text.finish_reason, calls=len(whole_calls(reader.calls)), follows_rule=text.follows_rule)
        return (
            found | {"finish_reason": "function_call"} if self.body.functions and found["finish_reason"] == "tool_calls" else found
        )

    def logprobs(self, *tokens: Any) -> dict[str, Any] | None:  # noqa: ANN401 - the fields of a text or a chunk
        """The `logprobs` field of a choice."""
        return self.tokens.of_chat(*tokens) if self.body.logprobs else None

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """See `Answer`."""

        def event(index: int, delta: dict[str, Any], chunk: Chunk) -> dict[str, Any]:
            logprobs = self.logprobs(chunk.token_ids, chunk.logprobs, chunk.alternatives) if chunk.token_ids else None
            reason = self.ending(chunk, self.chat.readers[index])
            choice = {"index": index, "delta": delta, "logprobs": logprobs, **reason}
            return self.envelope.wrap([choice], is_chunk=True)

        for index in range(len(self.job.continuations)):
            yield event(index, {"role": "assistant", "content": ""}, Chunk("", ()))
        async with contextlib.aclosing(self.chat.deltas()) as deltas:
            async for index, delta, chunk in deltas:
                if delta or chunk.finish_reason or (self.body.logprobs and chunk.token_ids):
                    yield event(index, delta_as_json(delta, is_older=bool(self.body.functions)), chunk)
        if self.body.includes_usage:
            yield self.envelope.wrap([], is_chunk=True, usage=usage(self.job))

    def failed(self, problem: Problem) -> dict[str, Any]:
        """See `Answer`."""
        return problem_as_json(problem)


def delta_as_json(delta: AnswerDelta, *, is_older: bool = False) -> dict[str, Any]:
    """Return what a step adds, in OpenAI's form; the thinking has both names that clients read.

    `is_older`: with the call of a function instead of calls of tools.
    """
    return {
        **({"reasoning_content": delta.reasoning, "reasoning": delta.reasoning} if delta.reasoning else {}),
        **({"content": delta.text} if delta.text else {}),
        **(parts_as_json(delta.tool_calls, is_older=is_older) if delta.tool_calls else {}),
    }


def parts_as_json(calls: Sequence[ToolCallDelta], *, is_older: bool) -> dict[str, Any]:
    """Parts of calls; in OpenAI's older form, of the first call only."""
    if not is_older:
        return {"tool_calls": [part_as_json(call) for call in calls]}
    first = [call for call in calls if call.index == 0]
    name, arguments = next((call.name for call in first if call.name), None), "".join(call.arguments for call in first)
    return {"function_call": {**({"name": name} if name else {}), "arguments": arguments}} if first else {}


def part_as_json(call: ToolCallDelta) -> dict[str, Any]:
    """A part of a tool call."""
    if call.id is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {"index": call.index, **call_as_json(call.id, call.name, call.arguments)}
