"""Records of chat answers and tool calls, whole and in parts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..results import FinishReason, Generation, Stats


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the model asks for."""

    id: str
    """Nine letters and digits: the form that every chat template takes."""
    name: str
    arguments: dict[str, Any]
    arguments_json: str
    """The arguments as JSON, as they were streamed."""
    is_cut: bool = False
    """Whether `arguments_json` is only the beginning of the arguments; `arguments` is empty then, and the call must not be run."""

    def as_json(self) -> dict[str, Any]:
        """The call in OpenAI's form."""
        return call_as_json(self.id, self.name, self.arguments_json)


def call_as_json(call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    """A call in OpenAI's form; `arguments`: JSON, or a part of it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next part of a tool call."""

    index: int
    """Which call of the answer."""
    arguments: str
    """More of the arguments, as JSON."""
    id: str | None = None
    """With the first part."""
    name: str | None = None
    """With the first part."""


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerDelta:
    """Additions of one step of a stream to an answer."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.tool_calls)


@dataclasses.dataclass(frozen=True, slots=True)
class ChatChunk:
    """One step of a stream."""

    text: str = ""
    """More of the answer's text."""
    reasoning: str = ""
    """More of the thinking."""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    """More of the tool calls."""
    token_ids: tuple[int, ...] = ()
    """Ids of this step, whether they are text, thinking or calls."""
    answer: ChatAnswer | None = None
    """On the last chunk: the whole answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A finished answer."""

    text: str
    """What the model says to the user."""
    reasoning: str
    """What it thought before; empty if it did not, or if the model cannot think."""
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    """`tool_calls` if the answer ended with calls; otherwise as in `Generation`."""
    generation: Generation
    """All that the model wrote, as it wrote it."""
    cut_call: ToolCall | None = None
    """A call that the answer was cut off in, which is none of `tool_calls`, and cannot be run."""

    @property
    def stats(self) -> Stats:
        """Counts and times."""
        return self.generation.stats

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, to append to the chat."""
        return message_of(self.text, self.reasoning, self.tool_calls)

    def __repr__(self) -> str:
        calls = "".join(f", {call.name}({json.dumps(call.arguments, ensure_ascii=False)[1:-1]})" for call in self.tool_calls)
        return f"<ChatAnswer {self.text!r:.80}{calls}: {self.finish_reason}>"

    def __str__(self) -> str:
        return self.text


def whole_calls(calls: Iterable[ToolCall]) -> list[ToolCall]:
    """The calls whose arguments were not cut off."""
    return [call for call in calls if not call.is_cut]


def message_of(text: str, reasoning: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """An answer as a message in OpenAI's form, for the next turn; without a call that was cut off, which no template can write."""
    whole = whole_calls(calls)
    tool_calls = {"tool_calls": [call.as_json() for call in whole]} if whole else {}
    return {"role": "assistant", "content": text, **({"reasoning_content": reasoning} if reasoning else {}), **tool_calls}


def finish_reason_of(reason: FinishReason, calls: int) -> str:
    """Why an answer ended: with calls, if it has some whole ones and was not cut off."""
    return "tool_calls" if calls and reason in ("eos", "stop") else reason


def tool_result(call: ToolCall, content: object) -> Mapping[str, Any]:
    """The result of a call as a message, to append to the chat after the answer's own; anything but text becomes JSON."""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}
