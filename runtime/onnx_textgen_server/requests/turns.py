"""Messages of a chat, in OpenAI's form, put together from the pieces of other wire formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def append_message(chat: list[dict[str, Any]], message: Mapping[str, Any]) -> None:
    r"""Append a message, or add it to the last one if both have the same role, because many templates only know turns.

    >>> chat = [{"role": "user", "content": "Hello."}]
    >>> append_message(chat, {"role": "user", "content": "Who are you?"})
    >>> chat
    [{'role': 'user', 'content': 'Hello.\nWho are you?'}]
    """
    if not chat or chat[-1]["role"] != message["role"] or message["role"] == "tool":
        chat.append(dict(message))
        return
    first = chat[-1]
    both = {**first, **message, "content": "\n".join(each["content"] for each in (first, message) if each["content"])}
    if calls := [*first.get("tool_calls", ()), *message.get("tool_calls", ())]:
        both["tool_calls"] = calls
    chat[-1] = both
