"""Renders a chat template with made-up histories, and shows what it writes after a user's message."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import TemplateError
from ..text.chat_template import render_chat
from .answer_form import CALL_ID
from .call_reader import BOTH, NAMES

USER, ANSWER, THOUGHT = "question from a user", "answer of the model", "thought of the model"


@dataclasses.dataclass(frozen=True, slots=True)
class MessageForm:
    """A template's form of earlier messages with calls."""

    arguments_as_text: bool = False
    """Whether it writes arguments unchanged, so that they have to be JSON already."""
    content: str | None = ""
    """The content of a message that has only calls."""
    thinks_with_text: bool = True
    """Whether it takes thinking in a message with calls that has a text too."""
    name_in_id: bool = False
    """Whether it writes the ids of calls and not their names, which have to be in the ids then."""


def tool_named(name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    """A tool with arguments that are texts."""
    properties = {key: {"type": "string", "description": f"about {key}"} for key in arguments}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": f"does {name}", "parameters": parameters}}


NUMBERS: Mapping[str, Any] = {"argone": 1}
NESTED: Mapping[str, Any] = {"argone": ["valueone", {"argtwo": True}]}
TOOLS = [tool_named(name, BOTH) for name in NAMES]


class Probe:
    """Renders a template, with None for what it refuses."""

    def __init__(self, template: str, bos_token: str | None, eos_token: str | None) -> None:
        self.template, self.bos_token, self.eos_token = template, bos_token, eos_token

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str | None:
        """The chat; with `prompt` up to where an answer begins."""
        for given in (tools,) if tools is not None else (None, ()):  # some templates need a list of tools
            with contextlib.suppress(TemplateError):
                return render_chat(
                    self.template,
                    messages,
                    bos_token=self.bos_token,
                    eos_token=self.eos_token,
                    add_generation_prompt=prompt,
                    tools=given,
                    variables=variables,
                )
        return None

    def after_user(self, answer: Mapping[str, Any] | None = None, **more: Any) -> str | None:  # noqa: ANN401
        """Return the text after the user's message: an answer with these fields, or nothing."""
        user = {"role": "user", "content": USER}
        text = self.render([user, {"role": "assistant", **answer}] if answer is not None else [user], **more)
        return None if text is None or USER not in text else text.rpartition(USER)[2]


def calls_of(names: Sequence[str], arguments: Sequence[Mapping[str, Any]], form: MessageForm) -> list[dict[str, Any]]:
    """Calls for a message, in the form that the template expects."""
    given = [json.dumps(each) if form.arguments_as_text else dict(each) for each in arguments]
    return [
        {
            "id": id_with_name(name, number) if form.name_in_id else CALL_ID,
            "type": "function",
            "function": {"name": name, "arguments": each},
        }
        for number, (name, each) in enumerate(zip(names, given, strict=True))
    ]


def id_with_name(name: str, number: int) -> str:
    """The id of a call that has its name, as Kimi K2 was trained on them; `number`: which call of the chat it is."""
    return f"functions.{name}:{number}"


def content_with_thinking(thinking: str, text: str) -> list[dict[str, str]]:
    """The content of an answer in parts."""
    return [{"type": "thinking", "thinking": thinking}, *([{"type": "text", "text": text}] if text else [])]
