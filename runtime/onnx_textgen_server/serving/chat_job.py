"""The answers of a chat, whatever the wire format of its request: generated, and divided into text, thinking and tool calls."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from onnx_textgen import Chunk, Model
from onnx_textgen.answers.answer_reader import AnswerReader
from onnx_textgen.answers.records import AnswerDelta
from onnx_textgen.chat.chat_format import Turn
from onnx_textgen.errors import TemplateError
from onnx_textgen.generation.continuation import Continuation

from ..requests.turns import turn_that_fits
from .jobs import Job

SHARE_OF_ANSWER = 4
"""The part of the context that a chat that is shortened leaves to the answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class ChatCall:
    """A request for answers, in the runtime's terms. Every wire format is converted to this."""

    messages: Sequence[Mapping[str, Any]]
    """In OpenAI's form."""
    inputs: Mapping[str, Any]
    """The arguments of `ChatEncoder.turn`: tools, tool_choice, thinking_budget, documents ..."""
    options: Mapping[str, Any]
    """Those of `GenerationConfig`."""
    answers: int = 1
    """How many answers to draw."""
    cache_salt: str | None = None
    """Only requests of the same one reuse each other's prompts."""
    is_shortened: bool = False
    """Whether the oldest messages are left out if there are too many for the context."""


class ChatJob:
    """The answers to one call."""

    def __init__(self, name: str, model: Model, call: ChatCall, max_seconds: float | None) -> None:
        """`name`: what the client calls the model. Raises `TemplateError`, `PromptError` and `OptionError`."""
        if model.manifest.encoder is not None:
            raise TemplateError(
                f"{name} is an encoder-decoder, which writes a text for a source and answers no chat; "
                "POST the source as the prompt to /v1/completions"
            )
        if model.manifest.text_encoder is not None:
            path = "embeddings" if model.manifest.pair_scoring is None else "rerank"
            raise TemplateError(f"{name} is an encoder, which writes no text; POST texts to /v1/{path}")
        if model.chat_template is None:
            raise TemplateError(f"{name} has no chat template; POST a plain text to /v1/completions instead of messages")
        self.model = model
        make: Callable[..., Turn] = functools.partial(model.chats.turn, **call.inputs)
        space = min(call.options["max_new_tokens"], model.manifest.geometry.context_length // SHARE_OF_ANSWER)
        turn = turn_that_fits(make, model.chats.held(call.messages), new_tokens=space) if call.is_shortened else make(call.messages)
        config, salt = model.generator.config(call.options), call.cache_salt
        self.job = Job.begin(model, [turn.prompt_ids], config, call.answers, max_seconds, turn=turn, cache_salt=salt)
        self.readers = [turn.reader(each.constraint) for each in self.job.continuations]

    async def finish(self) -> list[tuple[Continuation, AnswerReader]]:
        """Wait for all answers; returns each as generated, and as read."""
        await self.job.finish()
        answers = list(zip(self.job.continuations, self.readers, strict=True))

        def read() -> None:
            for each, reader in answers:
                reader.push(each.text)
                reader.flush()

        await self.job.run(read)  # in a thread: a regular expression of the response template may take long
        return answers

    async def thinking_tokens(self) -> int:
        """Tokens of the thinking so far, counted in its text."""
        thoughts = [reader.reasoning for reader in self.readers if reader.reasoning]
        encode = self.model.tokenizer.encode

        def count() -> int:
            return sum(len(encode(thought, add_special_tokens=False)) for thought in thoughts)

        return await self.job.run(count) if thoughts else 0  # in a thread: a long text takes long

    async def deltas(self) -> AsyncGenerator[tuple[int, AnswerDelta, Chunk], None]:
        """Yield what each chunk adds to which answer; closing the iterator cancels the answers.

        The last chunk of an answer, with its finish reason, comes after everything was read. `readers` may be ahead of what is
        yielded.
        """
        # Reading that may take long, as regular expressions may, is done in a thread of this chat's own, so that it delays no other
        # request; for other reading a thread would cost more than it.
        is_quick, loop = all(reader.is_quick for reader in self.readers), asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, "reading")  # it starts at its first use
        try:
            async with contextlib.aclosing(self.job.chunks()) as chunks:
                async for index, chunk in chunks:
                    parts = self.read(index, chunk) if is_quick else await loop.run_in_executor(thread, self.read, index, chunk)
                    for delta, part in parts:
                        yield index, delta, part
        finally:
            thread.shutdown(wait=False)  # to wait would hold up the event loop

    def read(self, index: int, chunk: Chunk) -> list[tuple[AnswerDelta, Chunk]]:
        """Return what a chunk adds to an answer; after the last chunk, the rest."""
        reader = self.readers[index]
        delta = reader.push(chunk.text)
        if chunk.finish_reason is None:
            return [(delta, chunk)]
        return [*([(delta, Chunk("", ()))] if delta else []), (reader.flush(), chunk)]
