"""Earlier messages, and the tools, in the form that a model's chat template wants.

Templates differ: some take arguments as JSON values and some as text, some write no calls of earlier answers, some know no role
`tool`, and some know no tools at all. What a template does not write becomes part of the messages' text, in the model's own form.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..answers.response_template import REASONING_FIELDS
from ..answers.tools import Tool
from ..derivation.answer_form import PROMPTED, CallForm
from ..derivation.derive import Derived
from ..derivation.template_probe import content_with_thinking, id_with_name
from ..errors import TemplateError
from ..options.checks import shown
from .fitting import RESULT
from .parts import text_of

INSTRUCTIONS = """# Tools

You can call these functions, each described by a JSON Schema:

<tools>
{tools}
</tools>

To call a function, answer with its name and arguments in exactly this form, and nothing after it:

{example}

Call a function only if you need its result. The result follows in the next message. Otherwise answer in plain text."""
UNFINISHED = re.compile(r"\s*|-|\.|[eE][+-]?|tr?u?|fa?l?s?|nu?l?|u[0-9a-fA-F]{0,4}")
"""What `json` leaves at the end of a text that was cut off: nothing, or a part of a number, a word or an escape in a string."""
Message = Mapping[str, Any]


def is_plain(message: Message) -> bool:
    """Return whether a message has a role and a text only, which every template writes."""
    has_more = message.get("tool_calls") or any(message.get(key) for key in REASONING_FIELDS)
    return not (message.get("role") == "tool" or has_more or isinstance(message.get("content"), list | tuple))


Messages = list[dict[str, Any]]


def prepare(messages: Sequence[Message], tools: Sequence[Tool], derived: Derived) -> tuple[Messages, Messages | None]:
    """The messages and the tools for the template; raises `TemplateError` for a call without a name."""
    prepared = list[dict[str, Any]]()
    for given in with_names_in_ids(messages) if derived.messages.name_in_id else messages:
        is_joined = isinstance(given.get("content"), list | tuple) and not derived.takes_parts
        message = {**given, "content": text_of(given["content"])} if is_joined else given
        if message.get("role") == "assistant":
            prepared.append(answer_for(message, derived))
        elif message.get("role") == "tool" and not derived.takes_results:
            result = RESULT.format(content=text_of(message.get("content")))
            before = text_of(prepared[-1].get("content")) if prepared and prepared[-1].get("role") == "user" else ""
            if before.startswith("<tool_response>"):
                prepared[-1] = {"role": "user", "content": before + "\n" + result}
            else:
                prepared.append({"role": "user", "content": result})
        else:
            prepared.append(dict(message))
    if not tools or derived.takes_tools:
        return prepared, [tool.as_json() for tool in tools] or None
    return with_instructions(prepared, tools, derived), None


def answer_for(message: Message, derived: Derived) -> dict[str, Any]:
    """An earlier answer, with its calls and its thinking where the template reads them."""
    form, made = derived.form, {key: value for key, value in message.items() if key not in REASONING_FIELDS}
    reasoning = next((message[key] for key in REASONING_FIELDS if message.get(key)), None)
    given, text = made.pop("tool_calls", None) or (), text_of(message.get("content"))
    fits = derived.messages.thinks_with_text or not (given and text)
    if reasoning and form.reasoning is not None and form.reasoning.key is not None and fits:
        made[form.reasoning.key] = reasoning
    is_part = reasoning is not None and form.reasoning is not None and form.reasoning.is_part
    if not given:
        return {**made, "content": content_with_thinking(str(reasoning), text)} if is_part else made
    if not isinstance(given, Sequence):
        raise TemplateError(f"tool_calls should be a list of calls, found {shown(given)}")
    read = [read_call(call) for call in given]
    calls = [(name, arguments) for name, arguments in read if not isinstance(arguments, str)]
    if len(calls) < len(read):
        written = "\n".join(as_it_was(name, arguments, form.calls or PROMPTED) for name, arguments in read)
        return {**made, "content": f"{text}\n{written}" if text else written}
    if not derived.writes_calls or (text and derived.messages.content is None):
        written = (form.calls or PROMPTED).write(calls)  # in a form that is not known, the most usual one
        return {**made, "content": f"{text}\n{written}" if text else written}
    functions = [call_for(call, arguments, derived) for call, (_, arguments) in zip(given, calls, strict=True)]
    content = content_with_thinking(str(reasoning), text) if is_part else text or derived.messages.content
    return {**made, "content": content, "tool_calls": functions}


def with_names_in_ids(messages: Sequence[Message]) -> list[Message]:
    """Messages in which each call's id has its name, for a template that writes no other; results get the same ids."""
    ids, changed, numbers = dict[str, str](), list[Message](), itertools.count()
    for message in messages:
        made, calls = dict(message), message.get("tool_calls")
        if isinstance(calls, Sequence):
            made["tool_calls"] = list[object]()
            for call in calls:
                name, _ = read_call(call)
                named = ids[str(call.get("id"))] = id_with_name(name, next(numbers))
                made["tool_calls"].append({**call, "id": named})
        if message.get("role") == "tool":
            made["tool_call_id"] = ids.get(str(message.get("tool_call_id")), message.get("tool_call_id"))
        changed.append(made)
    return changed


def call_for(call: Message, arguments: Mapping[str, Any], derived: Derived) -> dict[str, Any]:
    """A call, with its arguments as the template takes them, and its name first: some templates write it in this order."""
    wanted = json.dumps(arguments, ensure_ascii=False) if derived.messages.arguments_as_text else arguments
    function = {"name": None, **call.get("function", call), "arguments": wanted}
    return {**call, "function": function} if "function" in call else function


def read_call(call: object) -> tuple[str, dict[str, Any] | str]:
    """The name and the arguments of a call in OpenAI's form; arguments may be JSON in a text, and stay a text if they are none.

    Of a call that was cut off, whose JSON has only begun, no arguments are left: a template takes all or none.
    """
    function = call.get("function", call) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise TemplateError('a tool call should be {"id": ..., "type": "function", "function": {"name": ..., "arguments": ...}}')
    given = arguments = function.get("arguments") or {}
    if isinstance(given, str):
        try:
            arguments = json.loads(given)
        except (ValueError, RecursionError) as error:
            is_part = isinstance(error, json.JSONDecodeError) and is_cut_off(given, error)
            return name, {} if is_part or not given.strip() else given
    if isinstance(arguments, Mapping):
        return name, dict(arguments)
    try:
        return name, given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)
    except RecursionError as error:
        raise TemplateError(f"the arguments of the call of {name} are nested too deeply; give flat ones") from error


def as_it_was(name: str, arguments: Mapping[str, Any] | str, form: CallForm) -> str:
    """A call in a model's form, with arguments that may be any text: a model may have written what is no JSON object."""
    if not isinstance(arguments, str):
        return form.write([(name, arguments)])
    written = form.write([(name, {})])
    return written.replace("{}", arguments, 1) if "{}" in written else f"{written}\n{arguments}"


def is_cut_off(text: str, error: json.JSONDecodeError) -> bool:
    """Return whether invalid JSON is the beginning of a JSON object, as `max_tokens` leaves it."""
    if not text.lstrip().startswith("{") or error.msg == "Extra data":
        return False
    return error.msg.startswith("Unterminated string") or UNFINISHED.fullmatch(text, error.pos) is not None


def with_instructions(messages: list[dict[str, Any]], tools: Sequence[Tool], derived: Derived) -> list[dict[str, Any]]:
    """Messages that tell the model about the tools, because its template does not."""
    form = derived.form.calls or PROMPTED
    shown = "\n".join(json.dumps(tool.as_json(), ensure_ascii=False) for tool in tools)
    example = form.write([("name-of-the-function", {"name-of-an-argument": "value"})])
    text = INSTRUCTIONS.format(tools=shown, example=example)
    role = "system" if derived.takes_system else "user"
    place = next((index for index, message in enumerate(messages) if message.get("role") == role), None)
    if place is None:
        return [{"role": role, "content": text}, *messages]
    old = text_of(messages[place].get("content"))
    both = f"{old}\n\n{text}" if role == "system" else f"{text}\n\n{old}"
    return [*messages[:place], {**messages[place], "content": both}, *messages[place + 1 :]]
