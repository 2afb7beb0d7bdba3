"""The grammar of an answer with tool calls, in llguidance's Lark notation: arguments that always parse and fit their schemas.

A call is required, or optional: then any text may come first, and the grammar begins to bind where a call begins. Calls are written
exactly as the model's chat template writes those of earlier answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .answer_form import CallForm
from .tools import Tool

PYTHON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as Python's `json.dumps` and the `tojson` of templates write it: what models were trained on."""
MOST_CALLS = 16
"""Most calls of one answer: a small model would repeat a call without end."""
MARK = "placeoftheargument"
TEXT = r"TEXT: /(.|\n)*/"
SPACE = r"SPACE: /\s{0,4}/"
Split = Callable[[str], Sequence[tuple[str, int | None]]]
"""Splits a text at control tokens: gives each piece with None, and each control token with its id."""


def grammar_of_calls(
    tools: Sequence[Tool], form: CallForm, split: Split, *, required: bool, parallel: bool, schema: Mapping[str, Any] | None = None
) -> str:
    """The grammar of an answer that may call `tools`, or with `required` has to.

    `parallel`: whether it may have several calls; `schema`: what an answer without calls has to follow.
    """
    return Writer(tools, form, split).grammar(required=required, parallel=parallel, schema=schema)


class Writer:
    """Writes the rules of one grammar."""

    def __init__(self, tools: Sequence[Tool], form: CallForm, split: Split) -> None:
        self.tools, self.form, self.split = tools, form, split
        self.rules: list[str] = []

    def grammar(self, *, required: bool, parallel: bool, schema: Mapping[str, Any] | None) -> str:
        """See `grammar_of_calls`."""
        form = self.form
        is_list = form.kind in ("list", "python")
        opening = form.begin + ("[" if is_list else form.open)
        between = ", " if is_list else form.close + form.between + form.open
        ending = ("]" if is_list else form.close) + form.end
        self.rules.append("call: " + " | ".join(self.call(index, tool) for index, tool in enumerate(self.tools)))
        more = (
            f" ({self.text(between)} call){{0,{MOST_CALLS - 1}}}" if parallel and (between.strip() or form.kind != "object") else ""
        )
        self.rules.append(f"calls: call{more} {self.text(ending)}")
        if required:
            start = [f"start: SPACE {self.text(opening)} calls"]
        elif schema is not None:
            start = [f"start: SPACE ({self.text(opening)} calls | {json_rule(schema)})"]
        else:
            start = self.optional(opening)
        return "\n".join([*start, *self.rules, TEXT, SPACE, ""])

    def optional(self, opening: str) -> list[str]:
        """The beginning of an answer in which any text may come before the calls, or instead of them."""
        trigger = opening.strip() if opening.strip(" \n[") else ""
        if not trigger:  # a call is the whole answer, and recognised by its first character
            first = opening.strip() or "{"
            return [f"start: other | {self.text(opening)} calls", rf"other: /([^{regex_set(first)}](.|\n)*)?/"]
        rest = self.text(opening[opening.index(trigger) + len(trigger) :])
        first, number = self.split(trigger)[0]
        # A control token is no part of a text, so what comes before it needs no rule to end it.
        head = f"head: TEXT <[{number}]>" if number is not None else f"head[lazy]: TEXT {json.dumps(first)}"
        return [f"start: TEXT | head {self.text(trigger[len(first) :])} {rest} calls", head]

    def call(self, index: int, tool: Tool) -> str:
        """One call of a tool, without what opens and closes it; adds the rules that it needs."""
        form = self.form
        if form.kind == "python":
            return f"{self.text(tool.name + '(')} {self.keywords(index, tool)} {self.text(')')}"
        if form.kind == "tags":
            return f"{self.text(tool.name + form.middle)} {self.tags(index, tool)}"
        if form.kind == "named":
            return f"{self.text(tool.name + form.middle)} {json_rule(tool.schema)}"
        before, _, after = json.dumps(form.as_object(tool.name, {MARK: 0}), ensure_ascii=False).partition(f'{{"{MARK}": 0}}')
        return f"{self.text(before)} {json_rule(tool.schema)} {self.text(after)}"

    def keywords(self, index: int, tool: Tool) -> str:
        """The keyword arguments of a call in Python's notation: those that are required, then the others."""
        arguments = [
            (f"{self.text(key + '=')} {json_rule(with_definitions(schema, tool))}", required)
            for key, schema, required in tool.ordered_properties()
        ]
        comma = self.text(", ")
        for number, (argument, _) in enumerate(arguments):  # each rule: an argument that is there, and what may follow
            after = [f"({comma} {other})" + ("" if required else "?") for other, required in arguments[number + 1 :]]
            self.rules.append(f"keyword_{index}_{number}: {' '.join([argument, *after])}")
        firsts = range(1 if any(required for _, required in arguments) else len(arguments))
        choice = " | ".join(f"keyword_{index}_{number}" for number in firsts)
        return f"({choice})" + ("" if arguments and arguments[0][1] else "?") if choice and arguments else '""'

    def tags(self, index: int, tool: Tool) -> str:
        """The tags of a call: those that are required, then the others."""
        parts = list[str]()
        for number, (key, schema, required) in enumerate(tool.ordered_properties()):
            name = f"value_{index}_{number}"
            if schema.get("type") == "string" and "enum" not in schema and "const" not in schema:
                self.rules.append(f"{name}[lazy]: TEXT {self.text(self.form.tag_close)}")
                value = name
            else:
                value = f"{self.value(schema, tool)} {self.text(self.form.tag_close)}"
            tag = f"{self.text(self.form.tag_open + key + self.form.tag_middle)} {value}"
            parts.append(tag if required else f"({tag})?")
        return " ".join(parts)

    def value(self, schema: Mapping[str, Any], tool: Tool) -> str:
        """A value between tags: texts without quotes, anything else as JSON."""
        choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
        if choices and all(isinstance(choice, str) for choice in choices):
            return "(" + " | ".join(self.text(choice) for choice in choices) + ")"
        return json_rule(with_definitions(schema, tool))

    def text(self, text: str) -> str:
        """A literal text, with control tokens by their ids."""
        return " ".join(json.dumps(piece) if number is None else f"<[{number}]>" for piece, number in self.split(text)) or '""'


def json_rule(schema: Mapping[str, Any]) -> str:
    """A JSON value that follows a schema."""
    return "%json " + json.dumps({**schema, "x-guidance": PYTHON_STYLE})


def with_definitions(schema: Mapping[str, Any], tool: Tool) -> dict[str, Any]:
    """The schema of one argument, with the definitions that it may refer to."""
    return {**{key: tool.schema[key] for key in ("$defs", "definitions") if key in tool.schema}, **schema}


def regex_set(character: str) -> str:
    """A character for a set of a regular expression."""
    return "\\" + character if character in "\\[]^-/" else character
