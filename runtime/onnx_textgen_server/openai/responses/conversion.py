"""From the items of `/v1/responses` to messages of a chat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...requests.content_parts import content_of
from ...requests.turns import append_message, written
from .schema import CallItem, Item, MessageItem, OtherItem, ReferenceItem, ResultItem, ThoughtItem


def to_chat(items: Iterable[Item], before: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation so far, `before`, with the items appended."""
    chat = [dict(message) for message in before]
    names = {call["id"]: call["function"]["name"] for message in chat for call in message.get("tool_calls", ())}
    for item in items:
        if isinstance(item, CallItem):
            names[item.call_id] = item.name
        append_message(chat, message_of(item, names))
    return chat


def message_of(item: Item, names: dict[str, str]) -> dict[str, Any]:
    """A message, or a part of an answer. `names`: the function of each call."""
    if isinstance(item, MessageItem):
        return {"role": item.role, "content": content_of(item.content)}
    if isinstance(item, ResultItem):
        named = {"name": names[item.call_id]} if item.call_id in names else {}
        return {"role": "tool", "tool_call_id": item.call_id, **named, "content": content_of(item.output)}
    if isinstance(item, ThoughtItem):
        thought = "\n".join(part.text for part in item.content or item.summary or ())
        return {"role": "assistant", "content": "", **({"reasoning_content": thought} if thought else {})}
    if isinstance(item, OtherItem | ReferenceItem):
        return {"role": "assistant", "content": [{"type": item.type}]}
    function = {"name": item.name, "arguments": written(item.arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": item.call_id, "type": "function", "function": function}]}
