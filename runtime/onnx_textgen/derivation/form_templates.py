"""Response templates of the forms in which models write answers, and the forms of those response templates that show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import regex

from ..answers.response_template import ResponseTemplate
from .answer_form import CALL_ID, NUMBER, AnswerForm, CallForm, ReasoningForm

NAME_CHARACTER = r"[^\s<>{}()\"]"
NAME = rf"(?P<name>{NAME_CHARACTER}+?)"
PLACES = {CALL_ID: r"\s*\w+?\s*", NUMBER: r"\d+"}
"""Patterns of what differs between calls."""


def response_template_of(form: AnswerForm) -> dict[str, Any]:
    """The response template that reads such answers."""
    fields = dict[str, Any]()
    if form.reasoning is not None:
        opening, closing = form.reasoning.marks
        fields["reasoning_content"] = {"open": opening, "close": closing, "content": "text"}
    if form.calls is not None:
        fields["tool_calls"] = field_of_calls(form.calls)
        if form.calls.header is not None:
            fields["tool_calls"] |= delimiters_with_header(form.calls, form.reasoning, *form.calls.header)
    fields["content"] = {"content": "text", **marks_in_text(form)}
    anchor = {"start_anchor": form.anchor} if form.anchor else {"start_anchor_pattern": r"\Z"}
    return {"version": 1, "defaults": {"role": "assistant"}, **anchor, "fields": fields}


def marks_in_text(form: AnswerForm) -> dict[str, str]:
    """Return the texts that end a stretch of text and are no part of it: the marks around it, and the end of all calls."""
    ending = form.calls.end.strip() if form.calls is not None and form.calls.close.strip() else ""
    if form.text is None:
        return {"close": ending} if ending else {}
    closes = [form.text.close, form.text.again, ending]
    if form.header is None:
        closes.append(form.text.open)
        patterns = []
    else:
        begin, end = map(regex.escape, form.header)
        call = loose(form.calls.open) if form.calls is not None else begin
        patterns = [rf"{begin}(?:(?!{begin}|{end}|{call}).)*?{end}"]
        closes.append(form.reasoning.close if form.reasoning is not None else "")
    return {"close_pattern": "|".join([*patterns, *dict.fromkeys(loose(each) for each in closes if each.strip())])}


def delimiters_with_header(calls: CallForm, reasoning: ReasoningForm | None, begin: str, end: str) -> dict[str, Any]:
    """Return the delimiters of a call whose name stands anywhere in a header."""
    begin, end = regex.escape(begin), regex.escape(end)
    name = rf"{loose(calls.open)}\s*{NAME}(?!{NAME_CHARACTER})"
    closes = dict.fromkeys(each for each in (calls.close.strip(), reasoning.marks[1] if reasoning is not None else "") if each)
    return {"open_pattern": rf"(?:{begin}(?:(?!{begin}|{end}).)*?)?{name}(?:(?!{end}).)*?{end}", "close": list(closes)}


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
    if form.kind == "tags":
        return {**field, "content": "xml-inline", "content_args": {"tag_pattern": tag_pattern(form)}}
    own = {} if form.quotes is None else {"content_args": {"unquoted_keys": True, "string_delims": [list(form.quotes)]}}
    return {**field, "content": "json", **own}


def tag_pattern(form: CallForm) -> str:
    """A pattern of one argument in a tag. A value may have lines, so only the line break that belongs to the tag is left out."""
    opening, closing = (regex.escape(each.strip()) for each in (form.tag_open, form.tag_close))
    middles = [regex.escape(each.strip()) for each in dict.fromkeys((form.tag_middle, form.tag_middle_json)) if each]
    middle = middles[0] if len(middles) == 1 else f"(?:{'|'.join(middles)})"
    breaks = [r"\n?" if "\n" in each else "" for each in (form.tag_middle, form.tag_close)]
    return rf"{opening}\s*(?P<key>[^<>\s]+?)\s*{middle}{breaks[0]}(?P<value>.*?){breaks[1]}{closing}"


def read_reasoning(template: ResponseTemplate) -> ReasoningForm | None:
    """The form of the thinking that a response template reads, if its delimiters are texts."""
    field = template.reasoning
    if field is None or field.open is None or field.close is None or not (field.open.literals and field.close.literals):
        return None
    return ReasoningForm(field.open.literals[-1], field.close.literals[-1])


def read_calls(template: ResponseTemplate) -> CallForm | None:
    """The form of the calls that a response template reads, if they are JSON or Python's between delimiters that are texts."""
    field = template.tool_calls
    if field is None or field.open is None or not field.open.literals or field.content_args:
        return None
    function = field.transform.get("function") if isinstance(field.transform, Mapping) else None
    if not isinstance(function, Mapping) or (field.close is not None and not field.close.literals):
        return None
    placeholders = [str(function.get(part)).strip("{}").removeprefix("content.") for part in ("name", "arguments")]
    name_keys, arguments_keys = (tuple(each.split(".")) for each in placeholders)
    opening, closing = field.open.literals[-1], field.close.literals[-1] if field.close is not None else ""
    if field.content == "python-call-list":
        return CallForm("python", begin=opening, end=closing)
    if field.content != "json":
        return None
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
    """Return the delimiters of a call. What surrounds all calls belongs to the first and the last."""
    opens = opening or begin
    if (begin and opening) or has_places(opens):
        return {"open_pattern": optional(begin if opening else "") + loose(opens), **closing_of(closing, end)}
    return {"open": opens, **closing_of(closing, end)}


def closing_of(closing: str, end: str) -> dict[str, str]:
    """Return the text that ends a call; without it, the call extends to the end. The end of all calls is not text."""
    closes = closing or end
    if has_places(closes):
        return {"close_pattern": loose(closes)}
    return {"close": closes} if closes else {}


def has_places(text: str) -> bool:
    """Return whether a text has white space, or something else that may differ."""
    return len(text.split()) > 1 or any(place in text for place in PLACES)


def optional(text: str) -> str:
    """A pattern of a text that may be missing."""
    return rf"(?:{loose(text)}\s*)?" if text else ""


def loose(text: str) -> str:
    """A pattern of a text, with any white space where it has some, and any id and number where it has those of a call."""
    parts = regex.split("(" + "|".join(map(regex.escape, PLACES)) + ")", text)
    return "".join(PLACES.get(part) or r"\s*".join(map(regex.escape, part.split())) for part in parts)


def spaced(text: str) -> str:
    """A pattern of a text, with any white space around it; of none, one that only the end of a name fits."""
    return rf"\s*{loose(text)}" if text.strip() else rf"\s*(?!{NAME_CHARACTER})"
