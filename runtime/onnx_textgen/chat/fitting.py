"""Messages in other orders, for a template that refuses theirs, or that leaves out what the system says.

APIs allow any order of roles; templates do not: some take one system message, at the beginning, or none, and some take only turns
of user and assistant. What a message says is kept, and where it says it as far as the template allows.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ..text.refused import RefusedError
from .parts import text_of

RESULT = "<tool_response>\n{content}\n</tool_response>"
"""A result as a user's message."""
MARK = "what-the-system-says"
ROLES = ("system", "user", "assistant", "tool")
Messages = list[dict[str, Any]]
Given = Sequence[Mapping[str, Any]]


def known_roles(messages: Messages) -> Messages:
    """Roles that no template knows become one that all know."""
    return [message if message.get("role") in ROLES else {**message, "role": "user"} for message in messages]


def one_system(messages: Messages) -> Messages:
    """System messages at the beginning become one; a later one is given as the user's, so that what was cached before it stays."""
    first = list(itertools.takewhile(lambda message: message.get("role") == "system", messages))
    rest = [{**message, "role": "user"} if message.get("role") == "system" else message for message in messages[len(first) :]]
    return [*([all_joined(first)] if first else []), *rest]


def in_turns(messages: Messages) -> Messages:
    """Neighbours of one role become one message, and an answer that comes first answers an empty one."""
    made = Messages()
    for message in messages:
        if made and made[-1].get("role") == message.get("role") != "tool":
            made[-1] = joined(made[-1], message)
            continue
        if message.get("role") == "assistant" and all(each.get("role") == "system" for each in made):
            made.append({"role": "user", "content": ""})
        made.append(message)
    return made


def after_results(messages: Messages) -> Messages:
    """A user's words directly after a tool's result become a part of that."""
    made = Messages()
    for message in messages:
        if made and made[-1].get("role") == "tool" and message.get("role") == "user":
            made[-1] = joined(made[-1], {"content": message.get("content")})
        else:
            made.append(message)
    return made


def short_ids(messages: Messages) -> Messages:
    """Ids of calls of nine letters and digits, the form that every template takes."""
    ids = dict[str, str]()

    def short(given: object) -> object:
        if not isinstance(given, str) or re.fullmatch(r"[A-Za-z0-9]{9}", given):
            return given
        return ids.setdefault(given, f"call{len(ids):05}")

    made = Messages()
    for message in messages:
        more = dict[str, Any]()
        if isinstance(calls := message.get("tool_calls"), list):
            more["tool_calls"] = [{**call, "id": short(call.get("id"))} if isinstance(call, Mapping) else call for call in calls]
        if message.get("tool_call_id") is not None:
            more["tool_call_id"] = short(message["tool_call_id"])
        made.append({**message, **more})
    return made


def results_as_text(messages: Messages) -> Messages:
    """Results of tools are given by the user."""
    return [
        {"role": "user", "content": RESULT.format(content=text_of(message.get("content")))}
        if message.get("role") == "tool"
        else message
        for message in messages
    ]


def system_in_user(messages: Messages) -> Messages:
    """System messages are the beginning of the user's first message."""
    systems = [message for message in messages if message.get("role") == "system"]
    rest = [message for message in messages if message.get("role") != "system"]
    if not systems:
        return messages
    words = {**all_joined(systems), "role": "user"}
    place = next((place for place, message in enumerate(rest) if message.get("role") == "user"), None)
    if place is None:
        return [words, *rest]
    return [*rest[:place], joined(words, rest[place]), *rest[place + 1 :]]


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    r"""Two messages as one, with all that either has.

    >>> joined({"role": "user", "content": "Hello."}, {"role": "user", "content": "Who are you?"})
    {'role': 'user', 'content': 'Hello.\n\nWho are you?'}
    """
    contents = [each.get("content") for each in (first, second)]
    content: object
    if any(isinstance(each, list) for each in contents):
        parts = [each if isinstance(each, list) else [{"type": "text", "text": text_of(each)}] for each in contents if each]
        content = [part for each in parts for part in each]
    else:
        content = "\n\n".join(each for each in map(text_of, contents) if each)
    calls = [call for each in (first, second) if isinstance(each.get("tool_calls"), list) for call in each["tool_calls"]]
    return {**first, **second, "content": content, **({"tool_calls": calls} if calls else {})}


def all_joined(messages: Messages) -> dict[str, Any]:
    """Messages, of which there is at least one, as one."""
    first, *rest = messages
    for message in rest:
        first = joined(first, message)
    return first


STEPS: Sequence[Callable[[Messages], Messages]] = (one_system, results_as_text, in_turns, after_results, system_in_user)
"""In the order in which they are applied, to messages of known roles and ids."""
CHOICES = sorted(
    (steps for count in range(len(STEPS) + 1) for steps in itertools.combinations(STEPS, count)),
    key=lambda steps: (results_as_text in steps, len(steps)),
)
"""Those with the fewest changes come first; those without results of tools come last."""


def orders_of(messages: Given) -> Iterator[Messages]:
    """The messages in other orders, each once, those with the fewest changes first."""
    given = [dict(message) for message in messages]
    seen, known = [given], short_ids(known_roles(given))
    for steps in CHOICES:
        made = functools.reduce(lambda made, step: step(made), steps, known)
        if made not in seen:
            seen.append(made)
            yield made


class Write(Protocol):
    """Writes messages by a template."""

    def __call__(self, messages: Given, /, *, tools: Given | None) -> str:
        """The text; raises `RefusedError`."""
        ...


def fitted(write: Write, messages: Given, tools: Given | None = None) -> str:
    """The messages as a template writes them, in another order if it refuses theirs or leaves out a system message.

    Raises `RefusedError` if it refuses them in every order.
    """
    found, refusal = list[str](), None
    for order in itertools.chain([messages], orders_of(messages)):
        try:
            text = written(write, order, tools)
            found.append(text)
            if is_whole(write, order, tools, text):
                return text
        except RefusedError as error:
            refusal = refusal or error
    if found:
        return found[0]
    raise refusal or RefusedError("there are no messages")


def is_whole(write: Write, messages: Given, tools: Given | None, text: str) -> bool:
    """Return whether a text has what the system says; a template may write it in other words, and is asked again with a mark."""
    systems = [message for message in messages if message.get("role") == "system"]
    if all(text_of(message.get("content")).strip() in text for message in systems):
        return True
    marked = [{**message, "content": MARK} if message.get("role") == "system" else message for message in messages]
    return written(write, marked, tools).count(MARK) >= len(systems)


def written(write: Write, messages: Given, tools: Given | None) -> str:
    """The messages; raises `RefusedError`."""
    try:
        return write(messages, tools=tools)
    except RefusedError:
        if tools is not None:
            raise
        return write(messages, tools=())  # some templates need a list of tools
