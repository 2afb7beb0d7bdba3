"""Response templates: JSON that says how a model writes its thinking, its tool calls and its answer.

The format is that of transformers, which keeps one under `response_template` in `tokenizer_config.json`
(docs/source/en/chat_response_parsing.md there). A template names fields; each has delimiters, literal or regular expressions, a
kind of content, and how the content becomes the field's value. `response_parser` reads a text by it, `derivation` makes one from a
chat template.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, cast

import regex

from ..errors import PackageError
from ..installation import upgrade
from ..options.checks import shown
from .contents import CONTENT_KINDS, check_placeholders

MOST_CHARACTERS = 2**16
"""Longest template, as JSON."""
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Names that templates and makers give to the thinking."""
TOOL_CALLS, CONTENT = "tool_calls", "content"
TEMPLATE_KEYS = frozenset({"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"})
FIELD_KEYS = frozenset({"open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join", "optional"})
FIELD_KEYS |= {"transform", "transform_each"}
Json = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Delimiter:
    """Text or pattern that opens or closes a field."""

    pattern: regex.Pattern[str]
    literals: tuple[str, ...] = ()
    """The texts, if it is not a regular expression."""

    @property
    def text(self) -> str:
        """The delimiter for people to read."""
        return " or ".join(reversed(self.literals)) or self.pattern.pattern

    @property
    def can_extend(self) -> bool:
        """Whether a match at the end of the text so far may become longer."""
        return not self.literals or any(one != other and one.startswith(other) for one in self.literals for other in self.literals)


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A part of a message."""

    name: str
    open: Delimiter | None
    """None: the field holds the text outside all others."""
    close: Delimiter | None
    """None: it extends to the end of the text."""
    content: str = "text"
    content_args: Json = dataclasses.field(default_factory=dict)
    repeats: bool = False
    """The value is a list, with an item for each time that the field occurs."""
    join: str | None = None
    """What joins the texts of a field that repeats."""
    transform: Any = None
    transform_each: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class ResponseTemplate:
    """A checked response template."""

    data: Json
    """The template as JSON."""
    anchor: Delimiter
    """After its last match in a prompt, the answer begins."""
    fields: Mapping[str, Field]

    @property
    def implicit(self) -> Field | None:
        """The field of the text outside all others."""
        return next((field for field in self.fields.values() if field.open is None), None)

    @property
    def reasoning(self) -> Field | None:
        """The field of the thinking, if the model thinks."""
        return next((self.fields[name] for name in REASONING_FIELDS if name in self.fields), None)

    @property
    def tool_calls(self) -> Field | None:
        """The field of tool calls, if the model was trained to call tools."""
        return self.fields.get(TOOL_CALLS)

    def writes(self, token: str, *, in_answers: bool = False) -> bool:
        """Return whether a delimiter or another text of the template contains this token, so that decoding has to keep it.

        `in_answers`: an anchor, which an answer follows, does not count.
        """
        data = {key: value for key, value in self.data.items() if not (in_answers and key.startswith("start_anchor"))}
        texts = json.dumps(data, ensure_ascii=False)
        return any(json.dumps(each, ensure_ascii=False)[1:-1] in texts for each in (token, regex.escape(token)))


def read_response_template(data: object, where: str = "the response template") -> ResponseTemplate:
    """Check a template; raises `PackageError` that names the first thing that is wrong."""
    if not isinstance(data, Mapping):
        raise PackageError(f"{where} should be a JSON object, found {shown(data)}")
    if len(json.dumps(data)) > MOST_CHARACTERS:
        raise PackageError(f"{where} has more than {MOST_CHARACTERS:,} characters; shorten it")
    check_keys(data, TEMPLATE_KEYS, where)
    if data.get("version", 1) != 1:
        raise PackageError(f"{where} has version {shown(data['version'])}, and 1 is the only one; upgrade with: {upgrade()}")
    given = data.get("fields")
    if not isinstance(given, Mapping) or not given:
        raise PackageError(f"{where} should have fields, a JSON object that is not empty; found {shown(given)}")
    anchor = read_delimiter(data, "start_anchor", "start_anchor_pattern", where)
    if anchor is None:
        raise PackageError(f"{where} should have start_anchor, the text after which an answer begins")
    fields = {str(name): read_field(str(name), field, f"{where}: field {shown(name)}") for name, field in given.items()}
    implicit = [name for name, field in fields.items() if field.open is None]
    if len(implicit) > 1:
        raise PackageError(f"{where} has several fields without open ({', '.join(implicit)}); only one can hold the other text")
    return ResponseTemplate(dict(data), anchor, fields)


def read_field(name: str, data: object, where: str) -> Field:
    """Check one field."""
    if not isinstance(data, Mapping):
        raise PackageError(f"{where} should be a JSON object, found {shown(data)}")
    check_keys(data, FIELD_KEYS, where)
    content = data.get("content", "text")
    if content not in CONTENT_KINDS:
        raise PackageError(f"{where} has content {shown(content)}; the kinds are {', '.join(CONTENT_KINDS)}")
    content_args = data.get("content_args", {})
    if not isinstance(content_args, Mapping):
        raise PackageError(f"{where} should have content_args as a JSON object, found {shown(content_args)}")
    for key in ("repeats", "optional", "transform_each"):
        if not isinstance(data.get(key, False), bool):
            raise PackageError(f"{where} should have {key} true or false, found {shown(data[key])}")
    join = data.get("join")
    if join is not None and not (isinstance(join, str) and data.get("repeats")):
        raise PackageError(f"{where} should have join as a text, and repeats true with it; found {shown(join)}")
    try:
        check_placeholders(data.get("transform"))
    except ValueError as error:
        raise PackageError(f"{where}: {error}") from error
    return Field(
        name,
        open=read_delimiter(data, "open", "open_pattern", where),
        close=read_delimiter(data, "close", "close_pattern", where),
        content=content,
        content_args=content_args,
        repeats=data.get("repeats", False),
        join=join,
        transform=data.get("transform"),
        transform_each=data.get("transform_each", False),
    )


def check_keys(data: Json, known: frozenset[str], where: str) -> None:
    """Raise `PackageError` for a key that does not exist."""
    if unknown := sorted(map(str, data.keys() - known)):
        raise PackageError(f"{where} has the unknown key {unknown[0]!r:.60}; the keys are {', '.join(sorted(known))}")


def read_delimiter(data: Json, literal_key: str, pattern_key: str, where: str) -> Delimiter | None:
    """The delimiter under one of two keys: a text or a list of texts, or a regular expression."""
    literals, pattern = data.get(literal_key), data.get(pattern_key)
    if literals is not None and pattern is not None:
        raise PackageError(f"{where} has both {literal_key} and {pattern_key}; leave one out")
    if literals is not None:
        texts = [literals] if isinstance(literals, str) else literals
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise PackageError(
                f"{where} should have {literal_key} as a text or a list of texts, none empty; found {shown(literals)}"
            )
        longest_first = sorted(dict.fromkeys(cast("list[str]", texts)), key=len, reverse=True)
        return Delimiter(regex.compile("|".join(map(regex.escape, longest_first))), tuple(longest_first))
    if pattern is None:
        return None
    try:
        return Delimiter(regex.compile(pattern, regex.DOTALL))
    except (regex.error, TypeError) as error:
        raise PackageError(f"{where} should have {pattern_key} as a regular expression: {error}") from error
