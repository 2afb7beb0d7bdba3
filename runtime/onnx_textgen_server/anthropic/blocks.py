"""The content blocks of an answer, whole and while it is written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal

from onnx_textgen.answers.answer_reader import AnswerReader
from onnx_textgen.answers.records import AnswerDelta, ToolCallDelta

Kind = Literal["thinking", "text", "tool_use"]


def signature_of(thought: str) -> str:
    """Return the signature that clients send back with the thinking. Nothing checks it, and it may not be empty."""
    return hashlib.sha256(thought.encode()).hexdigest()


def content_of(reader: AnswerReader, *, shows_thinking: bool) -> list[dict[str, Any]]:
    """The blocks of a whole answer."""
    content = list[dict[str, Any]]()
    if reader.reasoning:
        thought = reader.reasoning if shows_thinking else ""
        content.append({"type": "thinking", "thinking": thought, "signature": signature_of(reader.reasoning)})
    if reader.text:
        content.append({"type": "text", "text": reader.text})
    return content + [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in reader.calls]


class Blocks:
    """Makes the events of blocks from what each step adds to an answer."""

    def __init__(self, *, shows_thinking: bool) -> None:
        self.shows_thinking = shows_thinking
        self.index = -1
        self.open: tuple[Kind, int] | None = None
        """The kind of the block that is open, and which call it is."""
        self.thought = ""
        """Thinking in the open block so far."""

    def push(self, delta: AnswerDelta) -> Iterator[dict[str, Any]]:
        """The events for a step."""
        if delta.reasoning:
            yield from self.begin("thinking", {"thinking": "", "signature": ""})
            self.thought += delta.reasoning
            if self.shows_thinking:
                yield self.more({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.text:
            yield from self.begin("text", {"text": ""})
            yield self.more({"type": "text_delta", "text": delta.text})
        for call in delta.tool_calls:
            yield from self.call(call)

    def call(self, call: ToolCallDelta) -> Iterator[dict[str, Any]]:
        """The events for a part of a call."""
        yield from self.begin("tool_use", {"id": call.id, "name": call.name, "input": {}}, place=call.index)
        if call.arguments:
            yield self.more({"type": "input_json_delta", "partial_json": call.arguments})

    def begin(self, kind: Kind, empty: dict[str, Any], place: int = 0) -> Iterator[dict[str, Any]]:
        """Open a block, unless it is open."""
        if self.open != (kind, place):
            yield from self.close()
            self.open, self.index = (kind, place), self.index + 1
            yield {"type": "content_block_start", "index": self.index, "content_block": {"type": kind, **empty}}

    def more(self, delta: dict[str, Any]) -> dict[str, Any]:
        """The event for more of the open block."""
        return {"type": "content_block_delta", "index": self.index, "delta": delta}

    def close(self) -> Iterator[dict[str, Any]]:
        """Close the open block."""
        if self.open is not None:
            if self.open[0] == "thinking":
                yield self.more({"type": "signature_delta", "signature": signature_of(self.thought)})
                self.thought = ""
            yield {"type": "content_block_stop", "index": self.index}
        self.open = None
