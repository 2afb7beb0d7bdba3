"""What templates ask for, orders of messages that APIs allow, and contents of every form: for Python's chats and JavaScript's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

WRITE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
REFUSE = "{{ raise_exception('refused') }}"
Messages = Sequence[Mapping[str, Any]]


def in_turns(messages: Messages) -> bool:
    return all((message["role"] == "user") == (place % 2 == 0) for place, message in enumerate(messages))


def without_first_system(messages: Messages) -> Messages:
    return messages[1:] if messages[0]["role"] == "system" else messages


def refusing(wrong: str, of: str = "messages") -> str:
    """A template that refuses messages of which one is wrong, `m`, and writes the others."""
    loop = f"{{% for m in {of} %}}{{% if {wrong} %}}{REFUSE}{{% endif %}}{{% endfor %}}"
    return loop + WRITE


TURNS = "(m.role == 'user') != (loop.index0 % 2 == 0)"
AFTER_SYSTEM = "(messages[1:] if messages[0].role == 'system' else messages)"
QUESTION = (
    "{% set ns = namespace(asked=false) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.asked = true %}{% endif %}"
)
PICKY: Mapping[str, tuple[Callable[[Messages], bool], str]] = {
    "a system message only at the beginning": (
        lambda messages: all(each["role"] != "system" for each in messages[1:]),
        refusing("m.role == 'system'", "messages[1:]"),
    ),
    "no system message": (
        lambda messages: all(each["role"] != "system" for each in messages),
        refusing("m.role == 'system'"),
    ),
    "turns after a system message": (
        lambda messages: in_turns(without_first_system(messages)),
        refusing(TURNS, AFTER_SYSTEM),
    ),
    "turns alone": (
        lambda messages: all(each["role"] in ("user", "assistant") for each in messages) and in_turns(messages),
        refusing(f"m.role not in ['user', 'assistant'] or {TURNS}"),
    ),
    "a question": (
        lambda messages: any(each["role"] == "user" for each in messages),
        QUESTION + "{% endfor %}{% if not ns.asked %}" + REFUSE + "{% endif %}" + WRITE,
    ),
    "a question at the end": (
        lambda messages: in_turns(without_first_system(messages)) or messages[-1]["role"] == "user",
        refusing(f"{TURNS} and messages[-1].role != 'user'", AFTER_SYSTEM),
    ),
    "its own roles": (
        lambda messages: all(each["role"] in ("system", "user", "assistant", "tool") for each in messages),
        refusing("m.role not in ['system', 'user', 'assistant', 'tool']"),
    ),
}
"""What templates ask for: whether messages have it, and a template that refuses others."""
ROLES = ("system", "developer", "user", "assistant", "critic")
ORDERS = [order for count in (1, 2, 3, 4) for order in itertools.product(ROLES, repeat=count)]
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call_0123456789", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "call_0123456789", "name": "f", "content": "said 1"}
OLDER_CALL = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
HISTORIES = {
    "calls and words after results": [{"role": "user", "content": "said 0"}, CALL, RESULT, {"role": "user", "content": "said 2"}],
    "a result without its call": [{"role": "user", "content": "said 0"}, RESULT, {"role": "assistant", "content": "said 2"}],
    "a system message between": [{"role": "user", "content": "said 0"}, CALL, RESULT, {"role": "system", "content": "said 2"}],
    "no content": [{"role": "user", "content": None}, {"role": "user", "content": "said 0"}, {"role": "user", "content": ""}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "said 0"}, {"type": "text", "text": "said 1"}]}],
    "a function's call": [
        {"role": "user", "content": "said 0"},
        OLDER_CALL,
        {"role": "function", "name": "f", "content": "said 1"},
        {"role": "user", "content": "said 2"},
    ],
}
UNREAD = [{"type": kind} for kind in ("image", "image_url", "input_image", "input_audio", "document", "file", "input_file")]
ODD_CONTENTS: Mapping[str, Any] = {
    "images": [{"type": "text", "text": "What is it?"}, *UNREAD],
    "a refusal": [{"type": "refusal", "refusal": "No."}],
    "thinking": [{"type": "thinking", "thinking": "Hm."}, {"type": "output_text", "text": "Yes."}],
    "texts": ["Yes.", {"text": " No."}],
    "odd parts": [{"type": "a b"}, 5, None],
    "none": None,
    "empty": [],
}
"""Contents of an earlier message."""


def messages_of(roles: Sequence[str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": f"said {number}"} for number, role in enumerate(roles)]
