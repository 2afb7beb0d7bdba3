"""The message for a command that was called wrongly: typer's line, with what it leaves out.

typer's error classes moved between its versions, so errors are recognised by their attributes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..errors import did_you_mean

TEXTS = ("PROMPT", "TEXT")
"""Arguments that are a text, which needs quotes if it has more than one word."""
EXTRA = re.compile(r"unexpected extra argument\S* \((.*)\)")
NO_COMMAND = re.compile(r"No such command '([^']*)'")
ELSEWHERE = {"run": "chat", "ls": "list", "ps": "list", "rm": "remove", "show": "info", "create": "export", "convert": "export"}
"""What other programs call our commands."""
WANTED: Mapping[str, str] = {
    "float_parsing": "a number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}
"""What a value should be, by the name of its failed check."""


def usage_message(error: Exception, arguments: Sequence[str], commands: Collection[str]) -> str:
    """Return what is wrong with `arguments`, and the command that shows the help."""
    context = getattr(error, "ctx", None)
    if (unknown := NO_COMMAND.match(str(error))) is not None:
        return f"there is no command {unknown[1]:.60}; {did_you_mean(unknown[1], commands, ELSEWHERE)}see: onnx-textgen -h"
    found = wrong_value(error) or (error.format_message() if hasattr(error, "format_message") else str(error))
    if context is not None and (extra := EXTRA.search(found)):
        found += quotes_hint(context, extra[1])
    # An error about an option without its value has no context yet.
    named = next((argument for argument in arguments if argument in commands), "")
    path = context.command_path if context is not None else f"onnx-textgen {named}".rstrip()
    return f"{found.rstrip('.')}; see: {path} -h"


def wrong_value(error: Exception) -> str:
    """Return what an option takes and what was found; empty for an error of another kind."""
    errors, parameter = getattr(error.__cause__, "errors", None), getattr(error, "param", None)
    if errors is None or parameter is None:
        return ""
    first: dict[str, Any] = errors()[0]
    wanted = WANTED.get(first["type"])
    if wanted is None:
        return f"{option_of(parameter)}: {first['msg'].removeprefix('Value error, ')}"
    return f"{option_of(parameter)} takes {wanted.format(**first.get('ctx', {}))}, found {first['input']!r:.60}"


def option_of(parameter: Any) -> str:  # noqa: ANN401 - typer's class, whose module varies
    """The longest spelling of an option, or an argument's name."""
    return max(parameter.opts, key=len) if parameter.param_type_name == "option" else str(parameter.metavar or parameter.name)


def quotes_hint(context: Any, extra: str) -> str:  # noqa: ANN401 - typer's class, whose module varies
    """A hint that a text of several words goes in quotes; empty if the command takes no text."""
    text = next((each for each in context.command.params if each.metavar in TEXTS and each.param_type_name == "argument"), None)
    if text is None:
        return ""
    return f'; a {text.metavar} of several words goes in quotes: "{context.params.get(text.name)} {extra}"'
