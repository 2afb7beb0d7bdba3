"""Reads a conversation that the browser kept or a person imported: untrusted, possibly of another version of this page."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from onnx_textgen.answers.plain_json import plain_json
from onnx_textgen.errors import OptionError
from onnx_textgen.options.checks import shown

from .message_tree import DELETED, ROOT, VERSION, Figures, Message, MessageTree, Node
from .user_pictures import read_pictures

MOST_MESSAGES = 2_000
MOST_CHARS = 2_000_000
"""Of all texts of a conversation."""
ROLES = ("user", "assistant", "tool")
TEXTS = ("reasoning_content", "tool_call_id", "name")
"""Fields of a message that hold a text and may be missing."""
KEY = re.compile("[0-9a-f]{1,32}")


def read_tree(value: object) -> MessageTree:
    """The conversation in a JSON value: as `MessageTree.to_json` writes it, or messages in OpenAI's form.

    Raises `OptionError` for anything else, and for a conversation beyond the limits.
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = {"messages": value}
    if not isinstance(value, Mapping):
        raise OptionError(f"a conversation is a JSON object with messages, found {shown(value)}; import one that this page wrote")
    if "nodes" not in value:
        return tree_of_messages(value.get("messages"), text_in(value, "title"))
    if value.get("version") != VERSION:
        raise OptionError(f"the conversation has version {shown(value.get('version'))}, this page reads {VERSION}; begin another")
    key, leaf, system = text_in(value, "key"), value.get("leaf"), text_in(value, "system")
    nodes = tuple(read_node(each, place) for place, each in enumerate(checked_list(value["nodes"])))
    if not KEY.fullmatch(key) or not is_index(leaf, len(nodes)):
        raise OptionError("the conversation is damaged: its key or its last message is missing; begin another")
    tree = MessageTree(key, text_in(value, "title"), system, nodes)
    return within_limits(dataclasses.replace(tree, leaf=tree.living(leaf)))  # type: ignore[arg-type]  # an index


def tree_of_messages(values: object, title: str = "") -> MessageTree:
    """A conversation of messages in OpenAI's form, one branch."""
    tree = MessageTree(title=title)
    for value in checked_list(values):
        if isinstance(value, Mapping) and value.get("role") in ("system", "developer"):
            texts = (tree.system, content_of(value) or "")
            tree = dataclasses.replace(tree, system="\n\n".join(filter(None, texts)))
        else:
            tree = tree.add(tree.leaf, read_message(value))
    return within_limits(tree)


def checked_list(value: object) -> Sequence[Any]:
    """A list of messages of allowed length."""
    if not isinstance(value, list) or len(value) > MOST_MESSAGES:
        found = f"{len(value):,} of them" if isinstance(value, list) else shown(value)
        raise OptionError(f"messages should be a list of at most {MOST_MESSAGES:,}, found {found}; import a shorter conversation")
    return value


def read_node(value: object, place: int) -> Node:
    """The node at a place of the list."""
    if not isinstance(value, Mapping) or not is_index(value.get("parent"), place):
        raise OptionError(f"message {place + 1} of the conversation is damaged: it follows no earlier message; begin another")
    if value.get("message") == DELETED:
        return Node(value["parent"], DELETED)
    calls = tuple(map(read_tool_call, checked_list(value.get("unfinished_calls") or [])))
    return Node(value["parent"], read_message(value.get("message")), read_figures(value.get("figures")), calls)


def is_index(value: object, length: int) -> bool:
    """Whether a value is `ROOT` or an index of a list of that length."""
    return isinstance(value, int) and not isinstance(value, bool) and ROOT <= value < length


def read_message(value: object) -> Message:
    """A message with the fields that this page knows; others are dropped."""
    if not isinstance(value, Mapping) or value.get("role") not in ROLES:
        raise OptionError(f"a message needs a role, one of {', '.join(ROLES)}; found {shown(value)}")
    message: dict[str, Any] = {"role": value["role"], "content": content_of(value)}
    message |= {name: text_in(value, name) for name in TEXTS if value.get(name) is not None}
    if value.get("images"):
        message["images"] = read_pictures(value["images"])
    if value.get("tool_calls"):
        message["tool_calls"] = [read_tool_call(each) for each in checked_list(value["tool_calls"])]
    return message


def read_tool_call(value: object) -> dict[str, Any]:
    """A tool call with its id, name and arguments."""
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(function, Mapping):
        raise OptionError(f"a tool call needs a function with a name, found {shown(value)}")
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str | Mapping):
        raise OptionError(f"the arguments of a tool call should be an object or its text, found {shown(arguments)}")
    try:
        plain_json(arguments)
    except ValueError as error:
        raise OptionError(f"the arguments of a tool call should be JSON: {error}") from error
    call = {"name": text_in(function, "name"), "arguments": arguments}
    return {"id": text_in(value, "id"), "type": "function", "function": call}


def content_of(message: Mapping[str, Any]) -> str | None:
    """The text of a message; of a list of parts, their texts."""
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content):
            raise OptionError("a message has a part that is no text, and this page takes only text; remove it")
        return "".join(part["text"] for part in content)
    if content is not None and not isinstance(content, str):
        raise OptionError(f"the content of a message should be text, found {shown(content)}")
    return content


def text_in(value: Mapping[str, Any], name: str) -> str:
    """The text of that name; empty if it is missing."""
    text = value.get(name)
    if text is not None and not isinstance(text, str):
        raise OptionError(f"{name} of a conversation should be text, found {shown(text)}")
    return text or ""


def read_figures(value: object) -> Figures | None:
    """The figures of an answer; None if they are missing or damaged, because an answer can be read without them."""
    if not isinstance(value, Mapping):
        return None
    found: dict[str, Any] = {}
    for field in dataclasses.fields(Figures):
        default: Any = field.default
        each, kind = value.get(field.name, default), type(default)
        if kind is str and isinstance(each, str):
            found[field.name] = each
        elif kind is not str and is_amount(each):
            found[field.name] = kind(each)
        else:
            return None
    return Figures(**found)


def is_amount(value: object) -> bool:
    """Whether a value is a number that a count or a time can be."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value < 1e12


def within_limits(tree: MessageTree) -> MessageTree:
    """The conversation, if its texts are not too long."""
    length = len(tree.system) + len(tree.title) + sum(len(repr([node.message, node.unfinished_calls])) for node in tree.nodes)
    if length > MOST_CHARS:
        raise OptionError(f"the conversation has {length:,} characters and this page takes {MOST_CHARS:,}; import a shorter one")
    return tree
