"""Answers of chats: generated, and divided into text, thinking and tool calls."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import Any

from ..answers.answer_reader import AnswerReader
from ..answers.records import AnswerDelta, ChatAnswer, ChatChunk, finish_reason_of, whole_calls
from ..cancellation import Cancellation, CancelScope
from ..chat.chat_format import Turn
from ..errors import OptionError
from ..generation.continuation import Continuation
from ..generation.request import Request
from ..options.keywords import TurnInputs
from ..results import Chunk
from .text_generator import TextGenerator


def stream_answer(
    generator: TextGenerator, turn: Turn, options: Mapping[str, Any], cancel: Cancellation | None
) -> Generator[ChatChunk, None, None]:
    """Stream one answer; raises errors of the prompt and the options at once, not at the first chunk."""
    config = generator.config({"max_new_tokens": generator.limits.context_length, **options})
    if config.has_several_texts:
        raise OptionError("a chat has one answer; leave out num_beams, num_return_sequences and best_of")
    generator = generator.for_adapter(config.adapter)
    continuation = generator.begin(turn.prompt_ids, config, turn=turn)
    chunks = generator.engine.chunks(Request(continuation, CancelScope(cancel, config.max_time)))
    return chat_chunks(chunks, continuation, turn.reader(continuation.constraint))


def chat_chunks(
    chunks: Generator[Chunk, None, None], continuation: Continuation, reader: AnswerReader
) -> Generator[ChatChunk, None, None]:
    """Yield what each chunk of a continuation adds to the answer; the last one has the whole answer."""
    last = AnswerDelta()
    with contextlib.closing(chunks):
        for chunk in chunks:
            yield chunk_of(reader.push(chunk.text), chunk.token_ids)
            if chunk.finish_reason is not None:
                last = reader.flush()  # before `chunks` ends: a session reads the message then
    yield chunk_of(last, answer=answer_of(continuation, reader))


def divided(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the options of a chat into those of `TurnInputs` and those of `GenerationConfig`, without those that are None."""
    given = {name: value for name, value in options.items() if value is not None}
    inputs = {name: value for name, value in given.items() if name in TurnInputs.__annotations__}
    return inputs, {name: value for name, value in given.items() if name not in inputs}


def answer_of(continuation: Continuation, reader: AnswerReader) -> ChatAnswer:
    """A finished answer."""
    generation, calls = continuation.result(), whole_calls(reader.calls)
    reason = finish_reason_of(generation.finish_reason, len(calls))
    cut = next((call for call in reader.calls if call.is_cut), None)
    return ChatAnswer(reader.text, reader.reasoning, tuple(calls), reason, generation, cut)


def chunk_of(delta: AnswerDelta, token_ids: tuple[int, ...] = (), answer: ChatAnswer | None = None) -> ChatChunk:
    """A chunk of a stream."""
    return ChatChunk(delta.text, delta.reasoning, delta.tool_calls, token_ids, answer)
