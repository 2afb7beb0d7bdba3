"""From Ollama's messages to the ones that the runtime takes, which have OpenAI's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..requests.turns import append_message, written
from .schema import Message


def pictures(given: Sequence[Any] | None) -> list[dict[str, Any]]:
    """Pictures in base64 as parts of a content."""
    return [{"type": "image", "base64": each} for each in given or ()]


def to_chat(messages: Sequence[Message], *, pictures_first: bool = False) -> list[dict[str, Any]]:
    """The messages. Calls without ids get some; a result belongs to the first open call of its tool.

    `pictures_first`: pictures come before their text, as most models that read them were trained.
    """
    chat, open_calls, count = list[dict[str, Any]](), list[tuple[str, str]](), 0
    for message in messages:
        text = message.content or ""
        parts = [{"type": "text", "text": text}]
        parts = [*pictures(message.images), *parts] if pictures_first else [*parts, *pictures(message.images)]
        made: dict[str, Any] = {"role": message.role, "content": parts if message.images else text}
        if message.thinking:
            made["reasoning_content"] = message.thinking
        for call in message.tool_calls or ():
            count += 1
            call_id, function = call.id or f"call{count:05}", call.function  # nine letters and digits, which every template takes
            open_calls.append((call_id, function.name))
            called = {"name": function.name, "arguments": written(function.arguments)}
            own = {"id": call_id, "type": "function", "function": called}
            made.setdefault("tool_calls", []).append(own)
        if message.role == "tool":
            made |= result_of(message, open_calls)
        append_message(chat, made)
    return chat


def result_of(message: Message, open_calls: list[tuple[str, str]]) -> dict[str, Any]:
    """Which call a result belongs to; the call is no longer open."""
    asked = (message.tool_call_id, message.tool_name)
    found = next((call for call in open_calls if asked[0] == call[0]), None)
    found = found or next((call for call in open_calls if asked[1] in (None, call[1])), None)
    if found is not None:
        open_calls.remove(found)
    call_id, name = found or asked
    return {key: value for key, value in (("tool_call_id", call_id), ("name", name)) if value is not None}
