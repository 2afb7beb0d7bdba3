"""`POST /v1/chat/completions`: the next turn of a chat, rendered by the model's template."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from onnx_textgen import Chunk, Model
from onnx_textgen.errors import TemplateError

from .answers import Envelope, TokenFormatter, ending, fingerprint, usage
from .jobs import Job
from .schema import ChatRequest


class Chat:
    """The answer to one request."""

    def __init__(self, name: str, model: Model, body: ChatRequest, max_seconds: float | None) -> None:
        """Raises `TemplateError`, `PromptError` and `OptionError`."""
        self.body = body
        if model.chat_template is None:
            raise TemplateError(f"{name} has no chat template; POST a plain text to /v1/completions instead of messages")
        prompt = model.encode_chat([message.as_data() for message in body.messages], **body.template_inputs())
        config = model.config(body.options_of_call(model.encoder.context_length))
        self.job = Job.begin(model, [prompt], config, body.n or 1, max_seconds)
        self.envelope, self.tokens = Envelope("chat.completion", name, fingerprint(model)), TokenFormatter(model)

    async def whole(self) -> dict[str, Any]:
        """See `Answer`."""
        await self.job.finish()
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": each.text, "refusal": None},
                "logprobs": self.tokens.of_chat(each.token_ids, each.logprobs, each.alternatives) if self.body.logprobs else None,
                "finish_reason": ending(each.finish_reason),
            }
            for index, each in enumerate(self.job.continuations)
        ]
        return self.envelope.wrap(choices, usage=usage(self.job))

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """See `Answer`."""

        def event(index: int, delta: dict[str, Any], chunk: Chunk | None = None) -> dict[str, Any]:
            logprobs, reason = None, None
            if chunk is not None:
                reason = ending(chunk.finish_reason)
                if self.body.logprobs and chunk.token_ids:
                    logprobs = self.tokens.of_chat(chunk.token_ids, chunk.logprobs, chunk.alternatives)
            choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
            return self.envelope.wrap([choice], is_chunk=True)

        for index in range(len(self.job.continuations)):
            yield event(index, {"role": "assistant", "content": ""})
        async with contextlib.aclosing(self.job.chunks()) as chunks:
            async for index, chunk in chunks:
                if chunk.text or chunk.finish_reason or (self.body.logprobs and chunk.token_ids):
                    yield event(index, {"content": chunk.text} if chunk.text else {}, chunk)
        if self.body.includes_usage:
            yield self.envelope.wrap([], is_chunk=True, usage=usage(self.job))
