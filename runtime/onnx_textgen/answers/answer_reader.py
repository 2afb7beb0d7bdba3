"""Reads one answer while it is generated, and divides it into text, thinking and tool calls."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import secrets
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .contents import is_whole, tags_in
from .plain_json import read_json
from .records import AnswerDelta, ToolCall, ToolCallDelta, message_of
from .response_parser import Broken, Closed, Event, Opened, Piece, ResponseParser
from .response_template import CONTENT, REASONING_FIELDS, TOOL_CALLS, Field, ResponseTemplate
from .tools import Tool

CHARACTERS = string.ascii_letters + string.digits


def new_call_id() -> str:
    """An id of nine letters and digits, which every chat template takes."""
    return "".join(secrets.choice(CHARACTERS) for _ in range(9))


@dataclasses.dataclass(frozen=True, slots=True)
class Spacing:
    """State between the text read so far and what may follow."""

    gap: str = ""
    """White space that counts only if more text follows."""
    after_field: bool = False
    """Whether a field other than text was the last."""


@dataclasses.dataclass(slots=True)
class GrowingCall:
    """A call that is being written, as far as it was reported."""

    field: Field
    captures: Mapping[str, str]
    before: Spacing
    """Spacing before the call; it counts only if this is no call."""
    id: str = dataclasses.field(default_factory=new_call_id)
    body: str = ""
    name: str | None = None
    """The name, once it was reported."""
    reported: str = ""
    """The part of the arguments that was reported."""
    latest: str = ""
    """The last piece of the body."""
    whole_arguments: str | None = None
    """The arguments as JSON, once they are complete."""
    tags: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The arguments of complete tags."""
    place: int = 0
    """Where the last complete tag ended."""
    wanted: int = 0
    """Length of the body at which the next tag is searched: a long value would be searched again with each token."""


class AnswerReader:
    """Reads one answer.

    With `grows`, a call is reported while it is written, which only a grammar justifies: what was reported cannot be taken back. If
    the call is cut off, it keeps the arguments so far. A call without a grammar is reported when it is complete; if it cannot be
    read, it becomes part of the answer's text.
    """

    def __init__(self, template: ResponseTemplate, *, prefix: str = "", tools: Sequence[Tool] = (), grows: bool = False) -> None:
        """`prefix`: what the template wrote of the answer already. Without `tools` calls are left in the text."""
        fields = {name: field for name, field in template.fields.items() if tools or name != TOOL_CALLS}
        self.parser = ResponseParser(dataclasses.replace(template, fields=fields), is_ruled=grows)
        self.tools, self.grows = {tool.name: tool for tool in tools}, grows
        self.text, self.reasoning, self.calls = "", "", list[ToolCall]()
        self.spacing = Spacing()
        self.growing: GrowingCall | None = None
        self.given = 0
        """Characters of the prefix."""
        for _ in self.deltas(self.parser.push(prefix)):
            pass
        # What the answer has before the model writes is not the model's; a call that it ends is.
        self.text = self.reasoning = ""
        self.calls.clear()
        self.given = len(prefix)
        self.spacing = dataclasses.replace(self.spacing, gap="")
        if self.growing is not None:
            self.growing.name, self.growing.reported, self.growing.before = None, "", Spacing()

    @property
    def is_thinking(self) -> bool:
        """Whether the thinking has begun and not ended."""
        return (
            self.parser.current is not None and self.parser.current.is_shown and self.parser.current.field.name in REASONING_FIELDS
        )

    @property
    def is_quick(self) -> bool:
        """Whether no text takes long to read, because no field has a regular expression or a content to be parsed."""
        fields = self.parser.template.fields.values()
        delimiters = [each for field in fields for each in (field.open, field.close) if each is not None]
        return all(field.content == "text" for field in fields) and all(each.literals for each in delimiters)

    def push(self, text: str) -> AnswerDelta:
        """Take more of the model's text; returns what it adds."""
        return joined(self.deltas(self.parser.push(text))) if text else AnswerDelta()

    def flush(self) -> AnswerDelta:
        """The rest, at the end of the text."""
        delta = joined(self.deltas(self.parser.flush()))
        if not self.spacing.after_field:
            delta = dataclasses.replace(delta, text=delta.text + self.spacing.gap)
            self.text, self.spacing = self.text + self.spacing.gap, Spacing()
        return delta

    def message(self) -> dict[str, Any]:
        """The answer so far as a message."""
        self.flush()
        return message_of(self.text, self.reasoning, self.calls)

    def deltas(self, events: Iterable[Event]) -> Iterator[AnswerDelta]:
        """Yield what each event adds to the answer."""
        for event in events:
            name = event.field.name
            if isinstance(event, Piece) and name in REASONING_FIELDS:
                yield self.thought(event.text)
            elif isinstance(event, Piece) and name == CONTENT:
                yield self.said(event.text)
            elif name == TOOL_CALLS:
                yield from self.called(event)
            elif isinstance(event, Opened) and name in REASONING_FIELDS:
                self.spacing = Spacing("\n" if self.reasoning else "")
            elif isinstance(event, Closed) and name in REASONING_FIELDS:
                self.spacing = Spacing(after_field=True)
            elif isinstance(event, Broken):
                yield self.said(event.text)

    def thought(self, text: str) -> AnswerDelta:
        """More of the thinking, without white space around it."""
        text = self.spacing.gap + text if self.reasoning else text.lstrip()
        kept = text.rstrip()
        self.spacing = Spacing(text[len(kept) :])
        self.reasoning += kept
        return AnswerDelta(reasoning=kept)

    def said(self, text: str) -> AnswerDelta:
        """More of the text; white space next to thinking and calls is left out."""
        text = self.spacing.gap + text
        if self.spacing.after_field:
            stripped = text.lstrip()
            if not stripped:
                self.spacing = Spacing(text, after_field=True)  # however the text is divided into pieces
                return AnswerDelta()
            text = (text[: len(text) - len(stripped)] or "\n") + stripped if self.text else stripped
        kept = text.rstrip()
        self.spacing = Spacing(text[len(kept) :])
        self.text += kept
        return AnswerDelta(text=kept)

    def called(self, event: Event) -> Iterator[AnswerDelta]:
        """A part of a tool call, or a whole one."""
        if isinstance(event, Closed | Broken) and self.is_given(event):
            self.growing = None
        elif isinstance(event, Opened):
            self.growing = GrowingCall(event.field, event.captures, self.spacing)
            self.spacing = Spacing(after_field=True)
        elif isinstance(event, Piece) and self.growing is not None:
            self.growing.body, self.growing.latest = self.growing.body + event.text, event.text
            if self.grows and (found := name_and_arguments(self.growing, self.tools)) is not None:
                yield from self.grown(self.growing, *found)
        elif isinstance(event, Broken):
            yield from self.broken(event)
        elif isinstance(event, Closed):
            made, field = calls_in(event.value), event.field
            is_read = self.growing is None or is_whole(self.growing.body, field.content, field.content_args)
            if made is None or not is_read or (self.growing is not None and is_cut_in_tags(event)):
                yield from self.broken(Broken(event.field, event.text, event.is_cut))
                return
            for name, arguments in made:
                yield self.complete(name, arguments)
            self.growing = None

    def is_given(self, event: Closed | Broken) -> bool:
        """Return whether the model wrote nothing of a call but white space after it."""
        return self.parser.position - len(event.text) + len(event.text.rstrip()) <= self.given

    def grown(self, growing: GrowingCall, name: str, arguments: str) -> Iterator[AnswerDelta]:
        """Report the arguments that were added since the last report."""
        more, is_first = arguments[len(growing.reported) :], growing.name is None
        if more or is_first:
            growing.name, growing.reported = name, arguments
            first = {"id": growing.id, "name": name} if is_first else {}
            yield AnswerDelta(tool_calls=(ToolCallDelta(len(self.calls), more, **first),))

    def complete(self, name: str, arguments: Mapping[str, Any] | str) -> AnswerDelta:
        """Report a complete call, or the rest of it."""
        growing = self.growing if self.growing is not None and self.growing.name == name else None
        tool, given = self.tools.get(name), read_json(arguments) if isinstance(arguments, str) else dict(arguments)
        typed = given if tool is None else tool.typed(given)
        written = json.dumps(typed, ensure_ascii=False)
        if growing is not None:
            found = name_and_arguments(growing, self.tools)
            written = found[1] if found is not None and is_complete(found[1]) else written
            written = written if written.startswith(growing.reported) else growing.reported
        is_cut = not is_complete(written)
        call = ToolCall(growing.id if growing else new_call_id(), name, {} if is_cut else read_json(written), written, is_cut)
        self.calls.append(call)
        first = {} if growing is not None else {"id": call.id, "name": name}
        more = written[len(growing.reported) if growing is not None else 0 :]
        self.growing = None
        return AnswerDelta(tool_calls=(ToolCallDelta(len(self.calls) - 1, more, **first),)) if more or first else AnswerDelta()

    def broken(self, event: Broken) -> Iterator[AnswerDelta]:
        """A call that cannot be read: text. If a part of it was reported as a call, it was cut off."""
        growing = self.growing
        is_begun = self.grows and event.is_cut  # a grammar lets nothing but a call follow
        if growing is not None:
            growing.wanted = 0  # all tags are searched
            if is_begun and growing.name is None and (named := name_in(growing)) is not None and named[0] in self.tools:
                yield from self.grown(growing, named[0], "")
            if growing.name is not None and (found := name_and_arguments(growing, self.tools)) is not None:
                yield from self.grown(growing, *found)
        if growing is None or growing.name is None:
            self.growing = None
            if growing is None or not is_begun:
                self.spacing = Spacing() if growing is None else growing.before
                yield self.said(event.text)
            return
        if is_complete(growing.reported):
            yield self.complete(growing.name, growing.reported)  # only what is around the arguments is missing
        else:
            self.calls.append(ToolCall(growing.id, growing.name, {}, growing.reported, is_cut=True))
            self.growing = None


def joined(deltas: Iterable[AnswerDelta]) -> AnswerDelta:
    """One delta instead of many, with the parts of one call joined."""
    text, reasoning, calls = "", "", list[ToolCallDelta]()
    for delta in deltas:
        text, reasoning = text + delta.text, reasoning + delta.reasoning
        for part in delta.tool_calls:
            if calls and calls[-1].index == part.index:
                calls[-1] = dataclasses.replace(calls[-1], arguments=calls[-1].arguments + part.arguments)
            else:
                calls.append(part)
    return AnswerDelta(text, reasoning, tuple(calls))


def calls_in(value: object) -> list[tuple[str, Mapping[str, Any] | str]] | None:
    """The names and arguments of the calls that a field holds; None if it holds something else."""
    found = list[tuple[str, Mapping[str, Any] | str]]()
    for item in value if isinstance(value, list) else [value]:
        function = item.get("function", item) if isinstance(item, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name := function.get("name"), str):
            return None
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = read_json(arguments)
            except ValueError:
                return None
        if not isinstance(arguments, Mapping | None):
            return None
        found.append((name, arguments or {}))
    return found


def name_in(growing: GrowingCall) -> tuple[str, int] | None:
    """The name of a growing call, and where it ends in the body; None if it is not certain yet, or only at the call's end."""
    field = growing.field
    if "name" in growing.captures:
        return growing.captures["name"], 0
    key = key_of(field.transform, "name") if field.content == "json" and not field.content_args else None
    if key is None or field.transform_each:
        return None
    found = re.match(rf'\s*\{{\s*{re.escape(json.dumps(key))}\s*:\s*("(?:[^"\\]|\\.)*+")', growing.body)
    try:
        return (read_json(found[1]), found.end()) if found else None
    except ValueError:
        return None


def name_and_arguments(growing: GrowingCall, tools: Mapping[str, Tool]) -> tuple[str, str] | None:
    """The name and the arguments so far, as JSON; None if they are not certain yet, or only at the call's end."""
    field, body = growing.field, growing.body
    named = name_in(growing)
    if named is None:
        return None
    name, place = named
    if field.content == "json" and not field.content_args and not field.transform_each:
        if "name" in growing.captures:
            return name, json_so_far(growing, body.lstrip())
        key = key_of(field.transform, "arguments")
        found = re.compile(rf"\s*,\s*{re.escape(json.dumps(key))}\s*:\s*(?=\{{)").match(body, place) if key else None
        return (name, json_so_far(growing, body[found.end() :])) if found else None
    if field.content == "xml-inline" and (tool := tools.get(name)) is not None:
        pairs = tool.typed(tags_so_far(growing))
        written = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in pairs.items())
        return name, "{" + ", ".join(written)
    return None


def tags_so_far(growing: GrowingCall) -> Mapping[str, Any]:
    """The arguments of a growing call's complete tags, of which each is read once."""
    if len(growing.body) >= growing.wanted:
        with contextlib.suppress(ValueError):  # the whole call will be read again, and be text
            for key, value, end in tags_in(growing.body, growing.field.content_args, growing.place):
                growing.tags[key], growing.place = value, end
        growing.wanted = len(growing.body) + (len(growing.body) - growing.place) // 32
    return growing.tags


def key_of(transform: object, part: str) -> str | None:
    """The key of the content that a transform takes the name or the arguments from, if it is one key."""
    function = transform.get("function") if isinstance(transform, Mapping) else None
    if function == "{content}":
        return part
    found = re.fullmatch(r"\{content\.(\w+)\}", str(function.get(part))) if isinstance(function, Mapping) else None
    return found[1] if found else None


def json_so_far(growing: GrowingCall, text: str) -> str:
    """The JSON object that a text begins with; all of the text if the object is not complete yet."""
    if growing.whole_arguments is None and "}" in growing.latest:  # otherwise long arguments would be parsed with each token
        with contextlib.suppress(ValueError, RecursionError):
            growing.whole_arguments = text[: json.JSONDecoder().raw_decode(text)[1]]
    return text.rstrip() if growing.whole_arguments is None else growing.whole_arguments


def is_cut_in_tags(event: Closed) -> bool:
    """Return whether the text ended in a call with tags, of which more could have followed."""
    return event.is_cut and event.field.content == "xml-inline" and event.field.close is not None


def is_complete(text: str) -> bool:
    """Return whether a text is a whole JSON object."""
    try:
        return isinstance(read_json(text), dict)
    except ValueError:
        return False
