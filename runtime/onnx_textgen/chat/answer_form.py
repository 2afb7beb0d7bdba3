"""The texts around thinking and tool calls in a model's answers, and the response template that reads them.

`derivation` finds them in a chat template. They serve both directions: `response_template_of` makes the template by which answers
are read, and `call_grammar` the grammar that an answer has to follow.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import regex

from .response_template import ResponseTemplate

Kind = Literal["object", "list", "named", "tags", "python"]
NAME_CHARACTER = r"[^\s<>{}()\"]"
NAME = rf"(?P<name>{NAME_CHARACTER}+?)"
CALL_ID = "abcdef123"
"""Stands for the id of a call: nine letters and digits, as some templates refuse other ids."""


@dataclasses.dataclass(frozen=True, slots=True)
class CallForm:
    """How a model writes tool calls.

    The calls of an answer are `begin`, the calls with `between` after each but the last, and `end`. One call is `open`, then its
    name and arguments, and `close`. The kinds:

    - "object": a JSON object that has the name and the arguments;
    - "list": a JSON list of such objects;
    - "named": the name as text, `middle`, and the arguments as a JSON object;
    - "tags": the name, `middle`, and for each argument `tag_open`, its key, `tag_middle`, its value and `tag_close`;
    - "python": a list of calls in Python's notation.
    """

    kind: Kind
    begin: str = ""
    open: str = ""
    middle: str = ""
    close: str = ""
    between: str = ""
    end: str = ""
    name_keys: tuple[str, ...] = ("name",)
    """Where the object has the name: its key, or the keys on the way to it."""
    arguments_keys: tuple[str, ...] = ("arguments",)
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further keys of the object, with their values."""
    tag_open: str = ""
    tag_middle: str = ""
    tag_close: str = ""

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls, each a name and arguments, as the model writes them."""
        if self.kind == "list":
            return self.begin + json.dumps([self.as_object(*call) for call in calls], ensure_ascii=False) + self.end
        if self.kind == "python":
            written = (f"{name}({', '.join(f'{key}={as_python(value)}' for key, value in given.items())})" for name, given in calls)
            return f"{self.begin}[{', '.join(written)}]{self.end}"
        return self.begin + self.between.join(self.open + self.write_body(*call) + self.close for call in calls) + self.end

    def write_body(self, name: str, arguments: Mapping[str, Any]) -> str:
        """One call, between `open` and `close`."""
        if self.kind == "object":
            return json.dumps(self.as_object(name, arguments), ensure_ascii=False)
        if self.kind == "named":
            return name + self.middle + json.dumps(arguments, ensure_ascii=False)
        tags = (self.tag_open + key + self.tag_middle + as_tag_value(value) + self.tag_close for key, value in arguments.items())
        return name + self.middle + "".join(tags)

    def as_object(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """One call as the JSON object that the model writes."""
        made: dict[str, Any] = {}
        for keys, value in ((self.name_keys, name), (self.arguments_keys, dict(arguments))):
            place = made
            for key in keys[:-1]:
                place = place.setdefault(key, {})
            place[keys[-1]] = value
        return {**made, **self.more}


PROMPTED = CallForm("object", open="<tool_call>\n", close="\n</tool_call>", between="\n")
"""How a model whose chat template knows no tools is told to call them: as most of those do that were trained to."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReasoningForm:
    """How a model writes its thinking."""

    open: str
    close: str
    key: str | None = None
    """The key under which the template reads the thinking of earlier messages; None if it reads none."""

    @property
    def marks(self) -> tuple[str, str]:
        """`open` and `close` without white space."""
        return self.open.strip(), self.close.strip()


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerForm:
    """How a model writes its answers."""

    anchor: str = ""
    """What the template writes before an answer; empty if that is not known."""
    reasoning: ReasoningForm | None = None
    calls: CallForm | None = PROMPTED
    """None: the template shows the model its tools, and in which form the model writes calls is not known."""


def as_python(value: object) -> str:
    """A value as Python code, with texts in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def as_tag_value(value: object) -> str:
    """A value between tags: a text unchanged, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def response_template_of(form: AnswerForm) -> dict[str, Any]:
    """The response template that reads such answers."""
    fields = dict[str, Any]()
    if form.reasoning is not None:
        opening, closing = form.reasoning.marks
        fields["reasoning_content"] = {"open": opening, "close": closing, "content": "text"}
    content = {"content": "text"}
    if form.calls is not None:
        fields["tool_calls"] = field_of_calls(form.calls)
        if (ending := form.calls.end.strip()) and form.calls.close.strip():
            content["close"] = ending
    fields["content"] = content
    anchor = {"start_anchor": form.anchor} if form.anchor else {"start_anchor_pattern": r"\Z"}
    return {"version": 1, "defaults": {"role": "assistant"}, **anchor, "fields": fields}


def field_of_calls(form: CallForm) -> dict[str, Any]:
    """The field that reads such calls."""
    is_list = form.kind in ("list", "python")
    begin, opening, closing, end = (each.strip() for each in (form.begin, "" if is_list else form.open, form.close, form.end))
    delimiters = delimiters_of(begin, opening, closing, end)
    if is_list:
        content = "json" if form.kind == "list" else "python-call-list"
        bare = {} if begin else {"open_pattern": r"^\s*(?=\[\w+\()" if form.kind == "python" else r"^\s*(?=\[\s*\{)"}
        each = as_function("{" + ".".join(form.name_keys) + "}", "{" + ".".join(form.arguments_keys) + "}")
        return {**(bare or delimiters), "content": content, "transform_each": True, "transform": each}
    if form.kind == "object":
        bare = {} if begin or opening else {"open_pattern": bare_object(form)}
        whole = as_function(
            "{" + ".".join(("content", *form.name_keys)) + "}", "{" + ".".join(("content", *form.arguments_keys)) + "}"
        )
        return {**(bare or delimiters), "content": "json", "repeats": True, "transform": whole}
    pattern = optional(begin) + loose(opening) + r"\s*" + NAME + spaced(form.middle)
    closes = closing_of(closing, end) or ({"close_pattern": rf"(?={loose(opening)})"} if opening else {})
    field = {"open_pattern": pattern, **closes, "repeats": True, "transform": as_function("{name}", "{content}")}
    if form.kind == "named":
        return {**field, "content": "json"}
    return {**field, "content": "xml-inline", "content_args": {"tag_pattern": tag_pattern(form)}}


def tag_pattern(form: CallForm) -> str:
    """A pattern of one argument in a tag. A value may have lines, so only the line break that belongs to the tag is left out."""
    opening, middle, closing = (regex.escape(each.strip()) for each in (form.tag_open, form.tag_middle, form.tag_close))
    breaks = [r"\n?" if "\n" in each else "" for each in (form.tag_middle, form.tag_close)]
    return rf"{opening}\s*(?P<key>[^<>\s]+?)\s*{middle}{breaks[0]}(?P<value>.*?){breaks[1]}{closing}"


def read_reasoning(template: ResponseTemplate) -> ReasoningForm | None:
    """The form of the thinking that a response template reads, if its delimiters are texts."""
    field = template.reasoning
    if field is None or field.open is None or field.close is None or not (field.open.literals and field.close.literals):
        return None
    return ReasoningForm(field.open.literals[-1], field.close.literals[-1])


def read_calls(template: ResponseTemplate) -> CallForm | None:
    """The form of the calls that a response template reads, if they are JSON between delimiters that are texts."""
    field = template.tool_calls
    if field is None or field.content != "json" or field.open is None or not field.open.literals:
        return None
    function = field.transform.get("function") if isinstance(field.transform, Mapping) else None
    if not isinstance(function, Mapping) or (field.close is not None and not field.close.literals):
        return None
    placeholders = [str(function.get(part)).strip("{}").removeprefix("content.") for part in ("name", "arguments")]
    name_keys, arguments_keys = (tuple(each.split(".")) for each in placeholders)
    opening, closing = field.open.literals[-1], field.close.literals[-1] if field.close is not None else ""
    if field.transform_each:
        return CallForm("list", begin=opening, end=closing, name_keys=name_keys, arguments_keys=arguments_keys)
    return CallForm("object", open=opening, close=closing, name_keys=name_keys, arguments_keys=arguments_keys)


def as_function(name: str, arguments: str) -> dict[str, Any]:
    """A transform to a tool call in OpenAI's form, with the placeholders of its name and arguments."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def bare_object(form: CallForm) -> str:
    """The beginning of an answer that is a call and nothing else; some models write a control token of tools before it."""
    return rf'^\s*(?:<\|[a-z_]*(?:tool|python)[a-z_]*\|>\s*)?(?=\{{\s*"{regex.escape(form.name_keys[0])}"\s*:)'


def delimiters_of(begin: str, opening: str, closing: str, end: str) -> dict[str, str]:
    """What opens and closes a call. What surrounds all calls belongs to the first and the last."""
    opens = opening or begin
    if (begin and opening) or len(opens.split()) > 1:
        return {"open_pattern": optional(begin if opening else "") + loose(opens), **closing_of(closing, end)}
    return {"open": opens, **closing_of(closing, end)}


def closing_of(closing: str, end: str) -> dict[str, str]:
    """What closes a call; without it, the call extends to the end. The end of all calls is left out of the text after them."""
    closes = closing or end
    if len(closes.split()) > 1:
        return {"close_pattern": loose(closes)}
    return {"close": closes} if closes else {}


def optional(text: str) -> str:
    """A pattern of a text that may be missing."""
    return rf"(?:{loose(text)}\s*)?" if text else ""


def loose(text: str) -> str:
    """A pattern of a text, with any white space where it has some."""
    return r"\s*".join(map(regex.escape, text.split()))


def spaced(text: str) -> str:
    """A pattern of a text, with any white space around it; of none, one that only the end of a name fits."""
    if not text.strip():
        return rf"\s*(?!{NAME_CHARACTER})"
    return r"\s*" + r"\s*\w+?\s*".join(map(loose, text.split(CALL_ID)))
