"""The texts around thinking, tool calls and text in a model's answers.

`derivation` finds them in a chat template. They serve both directions: `form_templates` makes the response template by which
answers are read, and `call_grammar` the grammar that an answer has to follow.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Kind = Literal["object", "list", "named", "tags", "python"]
CALL_ID = "abcdef123"
"""Stands for the id of a call: nine letters and digits, as some templates refuse other ids."""
NUMBER = "{number}"
"""Stands for the place of a call among those of the answer, from 0."""


@dataclasses.dataclass(frozen=True, slots=True)
class CallForm:
    """How a model writes tool calls.

    The calls of an answer are `begin`, the calls with `between` after each but the last, and `end`. One call is `open`, then its
    name and arguments, and `close`. In each of these texts, `CALL_ID` and `NUMBER` stand for what differs between calls. The kinds:

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
    header: tuple[str, str] | None = None
    """Texts before and after a header that contains the name; the model may write the name anywhere in it."""
    several: bool = True
    """Whether an answer may have several calls."""
    name_keys: tuple[str, ...] = ("name",)
    """Where the object has the name: its key, or the keys on the way to it."""
    arguments_keys: tuple[str, ...] = ("arguments",)
    before: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Keys of the object that come before the name, with their values."""
    tag_open: str = ""
    tag_middle: str = ""
    tag_middle_json: str = ""
    """Takes the place of `tag_middle` before a value that is no text."""
    tag_close: str = ""
    quotes: tuple[str, str] | None = None
    """Of "named": what stands before and after texts instead of quotation marks. Keys have none then."""

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts that do not depend on the call."""
        around = (self.begin, self.open, self.middle, self.close, self.between, self.end)
        return (*around, self.tag_open, self.tag_middle, self.tag_middle_json, self.tag_close, *(self.quotes or ()))

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls, each a name and arguments, as the model writes them."""
        if self.kind == "list":
            objects = [self.as_object(*call, number) for number, call in enumerate(calls)]
            return self.begin + json.dumps(objects, ensure_ascii=False) + self.end
        if self.kind == "python":
            written = (f"{name}({', '.join(f'{key}={as_python(value)}' for key, value in given.items())})" for name, given in calls)
            return f"{self.begin}[{', '.join(written)}]{self.end}"
        bodies = (self.write_one(*call, number) for number, call in enumerate(calls))
        return self.begin + self.between.join(bodies) + self.end

    def write_one(self, name: str, arguments: Mapping[str, Any], number: int) -> str:
        """One call, with `open` and `close`."""
        opening, middle, closing = (each.replace(NUMBER, str(number)) for each in (self.open, self.middle, self.close))
        if self.kind == "object":
            return opening + json.dumps(self.as_object(name, arguments, number), ensure_ascii=False) + closing
        if self.kind == "named":
            written = json.dumps(arguments, ensure_ascii=False) if self.quotes is None else in_quotes(arguments, *self.quotes)
        else:
            written = "".join(self.write_tag(key, value) for key, value in arguments.items())
        return opening + name + middle + written + closing

    def write_tag(self, key: str, value: object) -> str:
        """One argument in its tag."""
        return self.tag_open + key + self.middle_for(is_text=isinstance(value, str)) + as_tag_value(value) + self.tag_close

    def middle_for(self, *, is_text: bool) -> str:
        """Return the text between the key of a tag and its value."""
        return self.tag_middle if is_text or not self.tag_middle_json else self.tag_middle_json

    def as_object(self, name: str, arguments: Mapping[str, Any], number: int | str) -> dict[str, Any]:
        """One call as the JSON object that the model writes."""
        made: dict[str, Any] = {
            key: value.replace(NUMBER, str(number)) if isinstance(value, str) else value for key, value in self.before.items()
        }
        for keys, part in ((self.name_keys, name), (self.arguments_keys, dict(arguments))):
            place = made
            for key in keys[:-1]:
                place = place.setdefault(key, {})
            place[keys[-1]] = part
        return made


PROMPTED = CallForm("object", open="<tool_call>\n", close="\n</tool_call>", between="\n")
"""How a model whose chat template knows no tools is told to call them: as most of those do that were trained to."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReasoningForm:
    """How a model writes its thinking."""

    open: str
    close: str
    key: str | None = None
    """The key under which the template reads the thinking of earlier messages; None if it reads none under a key."""
    is_part: bool = False
    """Whether it reads the thinking as a part of the content: `{"type": "thinking", "thinking": ...}`."""

    @property
    def marks(self) -> tuple[str, str]:
        """`open` and `close` without white space."""
        return self.open.strip(), self.close.strip()


@dataclasses.dataclass(frozen=True, slots=True)
class TextForm:
    """The marks around the text of an answer, if it has some."""

    open: str
    close: str = ""
    again: str = ""
    """What stands between the thinking and what follows: the beginning of another message, or nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerForm:
    """How a model writes its answers."""

    anchor: str = ""
    """What the template writes before an answer; empty if that is not known."""
    reasoning: ReasoningForm | None = None
    calls: CallForm | None = PROMPTED
    """None: the template shows the model its tools, and in which form the model writes calls is not known."""
    text: TextForm | None = None
    """None: the text has no marks."""

    @property
    def header(self) -> tuple[str, str] | None:
        """Texts before and after the header of each part, if the headers of thinking and text differ in a word only.

        >>> thinking, text = ReasoningForm("<|channel|>analysis<|message|>", "<|end|>"), TextForm("<|channel|>final<|message|>")
        >>> AnswerForm(reasoning=thinking, text=text).header
        ('<|channel|>', '<|message|>')
        """
        if self.reasoning is None or self.text is None:
            return None
        one, other = (HEADER.fullmatch(each.strip()) for each in (self.reasoning.open, self.text.open))
        return (one[1], one[2]) if one is not None and other is not None and one.groups() == other.groups() else None


HEADER = re.compile(r"(<[^<>]+>)\w+(<[^<>]+>)")


def as_python(value: object) -> str:
    """A value as Python code, with texts in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def as_tag_value(value: object) -> str:
    """A value between tags: a text unchanged, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def in_quotes(value: object, opening: str, closing: str) -> str:
    """A JSON value with other marks around its texts, and none around its keys.

    >>> in_quotes({"city": "Oslo", "days": [1, None]}, "<|", "|>")
    '{city:<|Oslo|>,days:[1,null]}'
    """
    if isinstance(value, str):
        return opening + value + closing
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{in_quotes(item, opening, closing)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(in_quotes(item, opening, closing) for item in value) + "]"
    return json.dumps(value)
