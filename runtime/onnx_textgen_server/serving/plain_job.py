"""The text after one prompt, with the interface of `ChatJob`, for routes that answer chats and plain prompts alike."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from onnx_textgen import Chunk, Model
from onnx_textgen.answers.records import AnswerDelta, ToolCall
from onnx_textgen.generation.continuation import Continuation
from onnx_textgen.text.prompts import Prompt

from .jobs import Job


@dataclasses.dataclass(slots=True)
class PlainText:
    """Stand-in for `AnswerReader` where a text has neither thinking nor calls."""

    text: str = ""
    reasoning: str = ""
    calls: Sequence[ToolCall] = ()


class PlainJob:
    """The text after one prompt."""

    def __init__(
        self, model: Model, prompt: Prompt, options: Mapping[str, Any], max_seconds: float | None, *, cache_salt: str | None = None
    ) -> None:
        """Raises `PromptError` and `OptionError`."""
        self.job = Job.begin(model, [prompt], model.generator.config(options), 1, max_seconds, cache_salt=cache_salt)
        self.readers = [PlainText()]

    async def finish(self) -> list[tuple[Continuation, PlainText]]:
        """Wait for the text."""
        await self.job.finish()
        self.readers[0].text = self.job.continuations[0].text
        return list(zip(self.job.continuations, self.readers, strict=True))

    async def deltas(self) -> AsyncGenerator[tuple[int, AnswerDelta, Chunk], None]:
        """Yield what each chunk adds; closing the iterator cancels the text."""
        async with contextlib.aclosing(self.job.chunks()) as chunks:
            async for index, chunk in chunks:
                self.readers[index].text += chunk.text
                yield index, AnswerDelta(chunk.text), chunk
