"""The parts of a turn: text, reasoning and tool calls, from messages in OpenAI's form."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .message_tree import Message


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """What is said, in Markdown."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thought before it said something."""

    text: str
    seconds: float = 0.0
    """0 if that is not known."""
    is_over: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function, and its result if there is one."""

    name: str
    arguments: str
    """JSON, indented if it can be parsed."""
    result: str | None = None
    is_whole: bool = True
    """Whether the model has written it to its end."""


Part = Text | Reasoning | ToolCall


def parts_of(
    message: Message,
    results: Sequence[Message] = (),
    unfinished_calls: Sequence[Mapping[str, Any]] = (),
    *,
    thinking_seconds: float = 0.0,
) -> list[Part]:
    """The parts of a message, in the order in which they were made; `results`: the messages of role `tool` that follow it."""
    content, thoughts = message.get("content") or "", message.get("reasoning_content") or ""
    calls = message.get("tool_calls") or []
    parts: list[Part] = []
    if thoughts:
        parts.append(Reasoning(thoughts, thinking_seconds, is_over=bool(content or calls or unfinished_calls)))
    if content:
        parts.append(Text(content))
    found, others = results_of(calls, results)
    for call, result in zip(calls, found, strict=True):
        function = call["function"]
        parts.append(ToolCall(function["name"], pretty(function["arguments"]), content_in(result)))
    parts += [ToolCall(each.get("name") or "tool", "", content_in(each)) for each in others]
    for each in unfinished_calls:
        parts.append(ToolCall(each["function"]["name"], pretty(each["function"]["arguments"]), is_whole=False))
    return parts


def results_of(calls: Sequence[Mapping[str, Any]], results: Sequence[Message]) -> tuple[list[Message | None], list[Message]]:
    """The result of each call, by its id, None for one without; and the results of no call."""
    left, found = list(results), list[Message | None]()
    for call in calls:
        found.append(next((each for each in left if each.get("tool_call_id") == call["id"]), None))
        left = [each for each in left if each is not found[-1]]
    return found, left


def content_in(result: Message | None) -> str | None:
    """The result of a tool; None if there is none."""
    return None if result is None else pretty(result.get("content") or "")


def pretty(value: Any) -> str:  # noqa: ANN401 - a JSON value, or its text
    r"""A JSON value or its text, indented; any other text unchanged.

    >>> pretty('{"city": "Bern"}'), pretty("21 degrees")
    ('{\n  "city": "Bern"\n}', '21 degrees')
    """
    if isinstance(value, str):
        try:
            return indented(json.loads(value))
        except (ValueError, RecursionError):
            return value
    return indented(value)


def indented(value: Any) -> str:  # noqa: ANN401 - likewise
    """A JSON value as text of several lines."""
    return json.dumps(value, indent=2, ensure_ascii=False)
