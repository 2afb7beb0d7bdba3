"""Contents of messages in parts. The models here read text; a part that is none is named in its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import LOG, TemplateError
from ..options.checks import shown

TEXT_KEYS = ("text", "refusal")
"""Where parts of all wire formats have their text."""
THOUGHTS = ("thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text")
"""Types of parts that are no text of an answer, and that a template may read."""
TODAYS_ROLES = {"developer": "system", "function": "tool"}
"""Templates know OpenAI's newer and older roles by these names."""
CALL_ID = "call{:05}"
"""Of a call in OpenAI's older form, which has no id, by the place of its message; its result is in the next one."""
KIND = re.compile(r"[\w-]{1,64}")
Message = Mapping[str, Any]


def is_read(part: object) -> bool:
    """Return whether a part of a content is text, or thinking."""
    return isinstance(part, str) or (
        isinstance(part, Mapping) and (part.get("type") in THOUGHTS or any(isinstance(part.get(key), str) for key in TEXT_KEYS))
    )


def kind_of(part: object) -> str:
    """The type of a part or a tool, if it is a word: it goes into prompts and logs."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return kind if isinstance(kind, str) and KIND.fullmatch(kind) else "a part"


def named(part: object) -> str:
    """A short text that takes the place of a part.

    >>> named({"type": "image_url", "image_url": {"url": "data:..."}})
    '[image_url left out]'
    """
    return f"[{kind_of(part)} left out]"


def text_of(content: object) -> str:
    """The text of a content, which may be in parts or missing."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content if isinstance(content, str) else ""
    return "".join(str(part["text"]) for part in map(as_part, content) if "text" in part)


def as_part(part: object) -> Mapping[str, Any]:
    """A part as chat templates know it, of text or of thinking, which has no text of the answer."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Mapping):
        text = next((part[key] for key in TEXT_KEYS if isinstance(part.get(key), str)), None)
        if part.get("type") in THOUGHTS:
            return {key: value for key, value in part.items() if key != "text"}
        if text is not None:
            return {**part, "type": "text", "text": text}
    return {"type": "text", "text": named(part)}


def readable(messages: Sequence[Message], *, is_kept: Callable[[object], bool] = lambda part: False) -> list[Message]:
    """Messages of the roles that templates know, whose contents are text, or parts with text; a missing content is empty.

    `is_kept`: of a part that stays, as the place of a picture. A `function_call`, OpenAI's older form, becomes one of `tool_calls`.

    Other parts (images, sounds, files) of earlier messages and of a tool's results become a short text that names them, with one
    line in the log. Raises `TemplateError` for one in the last message of a user that no answer follows: it is what is asked about.
    """
    answered = max((place for place, message in enumerate(messages) if message.get("role") == "assistant"), default=-1)
    made, kinds = list[Message](), dict[str, None]()
    for place, given in enumerate(messages):
        content, role = given.get("content"), given.get("role")
        message = {**given, "content": "" if content is None else content}
        if "function_call" in message:
            called = message.pop("function_call")
            if called and not message.get("tool_calls"):
                message["tool_calls"] = [{"id": CALL_ID.format(place), "type": "function", "function": called}]
        if isinstance(role, str) and role in TODAYS_ROLES:
            message["role"] = TODAYS_ROLES[role]
        if role == "function":
            message.setdefault("tool_call_id", CALL_ID.format(place - 1))
        parts = content if isinstance(content, list | tuple) else ()
        unread = [part for part in parts if not is_read(part) and not is_kept(part)]
        if unread:
            if place > answered and role == "user":
                kind = unread[0].get("type") if isinstance(unread[0], Mapping) else unread[0]
                raise TemplateError(f"the models here read text, found a part of the type {shown(kind)}; leave it out")
            kinds |= dict.fromkeys(map(named, unread))
        if parts:
            message["content"] = [part if is_kept(part) else as_part(part) for part in parts]
        made.append(message)
    if kinds:
        LOG.warning("a chat has parts that are no text: %s", " ".join(kinds))
    return made
