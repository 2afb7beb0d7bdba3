"""The grammar of an answer with tool calls, in llguidance's Lark notation: arguments that always parse and fit their schemas.

A call is required, or optional: then any text may come first, and the grammar begins to bind where a call begins. Calls are written
exactly as the model's chat template writes those of earlier answers.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..answers.tools import Tool
from ..derivation.answer_form import CALL_ID, NUMBER, CallForm, TextForm, in_quotes
from ..errors import OptionError
from ..sampling.grammar import WIDER

PYTHON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as Python's `json.dumps` and the `tojson` of templates write it: what models were trained on."""
MOST_CALLS = 16
"""Most calls of one answer: a small model would repeat a call without end."""
MARK = "placeoftheargument"
TEXT = r"TEXT: /(.|\n)*/"
SPACE = r"SPACE: /\s{0,4}/"
PLACES = {NUMBER: "NUMBER", CALL_ID: "ID"}
TERMINALS = ("NUMBER: /[0-9]{1,2}/", "ID: /[a-zA-Z0-9]{9}/")
"""What differs between calls."""
PLACE = re.compile("(" + "|".join(map(re.escape, PLACES)) + ")")
Split = Callable[[str], Sequence[tuple[str, int | None]]]
"""Splits a text at control tokens: gives each piece with None, and each control token with its id."""


def grammar_of_calls(
    tools: Sequence[Tool],
    form: CallForm,
    split: Split,
    *,
    required: bool,
    parallel: bool,
    schema: Mapping[str, Any] | None = None,
    is_strict: bool = False,
    text: TextForm | None = None,
    eos_ids: Collection[int] = (),
) -> str:
    """The grammar of an answer that may call `tools`, or with `required` has to.

    `parallel`: whether it may have several calls; `schema`: what an answer without calls has to follow, after the mark of
    `text`, and `is_strict`: all of it. `eos_ids`: the ids that end an answer, also where the form has them. Raises `OptionError`
    for what no grammar expresses.
    """
    writer = Writer(tools, form, split, eos_ids)
    rule = None if schema is None else json_rule(schema, {} if is_strict else WIDER)
    return writer.grammar(required=required, parallel=parallel and form.several, rule=rule, text=text or TextForm(""))


class Writer:
    """Writes the rules of one grammar."""

    def __init__(self, tools: Sequence[Tool], form: CallForm, split: Split, eos_ids: Collection[int]) -> None:
        self.tools, self.form, self.eos_ids = tools, form, eos_ids
        self.split = functools.cache(split)  # the same few texts surround each argument of each tool
        self.rules: list[str] = []

    def grammar(self, *, required: bool, parallel: bool, rule: str | None, text: TextForm) -> str:
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
        self.rules.append(f"calls: call{more} {self.text(self.before_eos(ending))}")
        if required:
            start = [f"start: SPACE {self.text(opening)} calls"]
        elif rule is not None:
            start = [f"start: SPACE ({self.text(opening)} calls | {self.text(text.open)} {rule})"]
        else:
            start = self.optional(opening)
        return "\n".join([*start, *self.rules, TEXT, SPACE, *TERMINALS, ""])

    def optional(self, opening: str) -> list[str]:
        """The beginning of an answer in which any text may come before the calls, or instead of them."""
        trigger = PLACE.split(opening.strip())[0] if opening.strip(" \n[") else ""
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
            middle = self.text(form.middle)
            if form.header is not None:  # the model may have written a part of it before the name
                middle = f"({middle} | SPACE {self.text(form.header[1])})"
            arguments = rule_of(tool.schema, tool) if form.quotes is None else self.in_quotes(tool.schema, tool)
            return f"{self.text(tool.name)} {middle} {arguments}"
        before, _, after = json.dumps(form.as_object(tool.name, {MARK: 0}, NUMBER), ensure_ascii=False).partition(
            f'{{"{MARK}": 0}}'
        )
        return f"{self.text(before)} {rule_of(tool.schema, tool)} {self.text(after)}"

    def keywords(self, index: int, tool: Tool) -> str:
        """The keyword arguments of a call in Python's notation: those that are required, then the others."""
        arguments = [
            (f"{self.text(key + '=')} {rule_of(schema, tool)}", required) for key, schema, required in tool.ordered_properties()
        ]
        return self.listed(f"keyword_{index}", arguments, ", ")

    def listed(self, name: str, members: Sequence[tuple[str, bool]], separator: str) -> str:
        """Members with a separator between them, each with whether it is required; those that are required come first."""
        comma = self.text(separator)
        for number, (member, _) in enumerate(members):  # each rule: a member that is there, and what may follow
            after = [f"({comma} {other})" + ("" if required else "?") for other, required in members[number + 1 :]]
            self.rules.append(f"{name}_{number}: {' '.join([member, *after])}")
        firsts = range(1 if any(required for _, required in members) else len(members))
        choice = " | ".join(f"{name}_{number}" for number in firsts)
        return f"({choice})" + ("" if members[0][1] else "?") if members else '""'

    def in_quotes(self, schema: Mapping[str, Any], tool: Tool) -> str:
        """A value in the notation of `CallForm.quotes`; raises `OptionError` for a schema that says more than types and choices."""
        opening, closing = self.form.quotes or ("", "")
        kind, choices = schema.get("type"), schema.get("enum", [schema["const"]] if "const" in schema else None)
        if choices is not None:
            return "(" + " | ".join(self.text(in_quotes(choice, opening, closing)) for choice in choices) + ")"
        if kind == "string":
            return f"{self.text(opening)} {self.rule(f'TEXT {self.text(closing)}', lazy=True)}"
        if kind in ("integer", "number", "boolean", "null"):
            return json_rule(schema)
        if kind == "array" and isinstance(schema.get("items"), Mapping):
            return self.array_in_quotes(self.rule(self.in_quotes(schema["items"], tool)), schema)
        if kind == "object" and schema.get("properties"):
            properties, required = schema["properties"], schema.get("required") or ()
            keys = sorted(properties, key=lambda key: key not in required)
            members = [(f"{self.text(key + ':')} {self.in_quotes(properties[key], tool)}", key in required) for key in keys]
            return f'"{{" {self.listed(f"members_{len(self.rules)}", members, ",")} "}}"'
        if kind == "object" and schema.get("additionalProperties") is False:
            return '"{}"'
        raise OptionError(f"the parameters of the tool {tool.name} cannot be required of this model: give each a type, and no more")

    def array_in_quotes(self, item: str, schema: Mapping[str, Any]) -> str:
        """A list of items that follow a rule."""
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[]"'
        more = f"{{{max(0, least - 1)},{'' if most is None else most - 1}}}"
        members = f'({item} ("," {item}){more})'
        return f'"[" {members}{"" if least else "?"} "]"'

    def rule(self, body: str, *, lazy: bool = False) -> str:
        """Add a rule; returns its name."""
        name = f"part_{len(self.rules)}"
        self.rules.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def tags(self, index: int, tool: Tool) -> str:
        """The tags of a call: those that are required, then the others."""
        parts, close = list[str](), self.form.tag_close
        mark = close.strip()  # ends a text, with or without the line break before it, as the reader takes it
        rest = self.text(close.partition(mark)[2])
        for number, (key, schema, required) in enumerate(tool.ordered_properties()):
            name = f"value_{index}_{number}"
            if schema.get("type") == "string" and "enum" not in schema and "const" not in schema:
                self.rules.append(f"{name}[lazy]: TEXT {self.text(mark)}")
                value = f"{name} {rest}"
            else:
                value = f"{self.value(schema, tool)} {self.text(close)}"
            middle = self.form.middle_for(is_text=value.startswith(name) or is_choice_of_texts(schema))
            tag = f"{self.text(self.form.tag_open + key + middle)} {value}"
            parts.append(tag if required else f"({tag})?")
        return " ".join(parts)

    def value(self, schema: Mapping[str, Any], tool: Tool) -> str:
        """A value between tags: texts without quotes, anything else as JSON."""
        if is_choice_of_texts(schema):
            choices = schema.get("enum", [schema.get("const")])
            return "(" + " | ".join(self.text(choice) for choice in choices) + ")"
        return rule_of(schema, tool)

    def text(self, text: str) -> str:
        """A literal text, with control tokens by their ids."""
        rules = list[str]()
        for part in PLACE.split(text):
            pieces = [(part, None)] if part in PLACES else self.split(part)
            rules += [PLACES.get(piece) or json.dumps(piece) if number is None else f"<[{number}]>" for piece, number in pieces]
        return " ".join(rules) or '""'

    def before_eos(self, text: str) -> str:
        """A text up to a token that ends the answer, which no grammar needs to name."""
        kept = ""
        for piece, number in self.split(text):
            if number is not None and number in self.eos_ids:
                break
            kept += piece
        return kept


def is_choice_of_texts(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema lists its values, and all are texts."""
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return bool(choices) and all(isinstance(choice, str) for choice in choices)


def json_rule(schema: Mapping[str, Any], how: Mapping[str, bool] | None = None) -> str:
    """A JSON value that follows a schema; `how`: further options of llguidance."""
    return "%json " + json.dumps({**schema, "x-guidance": {**PYTHON_STYLE, **(how or {})}})


def rule_of(schema: Mapping[str, Any], tool: Tool) -> str:
    """A JSON value that follows a schema of a tool: all of its arguments or one, which may refer to the tool's definitions."""
    whole = tool.schema
    definitions: dict[str, Any] = {key: whole[key] for key in ("$defs", "definitions") if key in whole}
    return json_rule({**definitions, **schema}, {} if tool.strict else WIDER)


def regex_set(character: str) -> str:
    """A character for a set of a regular expression."""
    return "\\" + character if character in "\\[]^-/" else character
