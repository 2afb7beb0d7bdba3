"""Reads an answer by a response template while it is generated: which text belongs to which field.

As transformers' `ResponseParser`, with one difference: a field whose content cannot be read, such as a broken tool call, is
reported with its whole text, and the rest is read, so that nothing the model wrote is lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import regex

from ..errors import PackageError
from .contents import MATCH_SECONDS, is_whole, parse_content, transformed
from .response_template import Delimiter, Field, ResponseTemplate


@dataclasses.dataclass(frozen=True, slots=True)
class Opened:
    """A field begins."""

    field: Field
    captures: dict[str, str]
    """The named groups of the delimiter."""


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """More text of the open field."""

    field: Field
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Closed:
    """A field ended."""

    field: Field
    value: Any
    text: str
    """All of it, delimiters too."""
    is_cut: bool
    """Whether the text ended before the field's delimiter."""


@dataclasses.dataclass(frozen=True, slots=True)
class Broken:
    """A field ended, and its content cannot be read."""

    field: Field
    text: str
    """All of it, delimiters too."""
    is_cut: bool


Event = Opened | Piece | Closed | Broken


@dataclasses.dataclass(slots=True)
class OpenField:
    """The field that is being read."""

    field: Field
    opening: str
    captures: dict[str, str]
    is_shown: bool
    """Whether `Opened` was reported; of the implicit field it is with its first text."""
    parts: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A delimiter in the text."""

    field: Field
    opens: bool
    match: regex.Match[str]

    @property
    def order(self) -> tuple[int, int, bool, str]:
        """The first comes first; of those at one place the longest."""
        return self.match.start(), -(self.match.end() - self.match.start()), not self.opens, self.field.name


class ResponseParser:
    """Reads one answer."""

    def __init__(self, template: ResponseTemplate, *, is_ruled: bool = False) -> None:
        """`is_ruled`: whether a grammar ends a field only after its whole content, so that a delimiter before is part of it."""
        self.template, self.is_ruled, self.text = template, is_ruled, ""
        self.position = 0
        """Characters of `text` that were read."""
        self.held = 0
        """Where a delimiter may have begun, or the end of `text`."""
        self.current = self.implicit()

    def implicit(self) -> OpenField | None:
        """The field outside all others, with no text yet."""
        field = self.template.implicit
        return None if field is None else OpenField(field, "", {}, is_shown=False)

    def push(self, text: str) -> Iterator[Event]:
        """Take more text; yields what is certain now. Exhaust the iterator before the next call."""
        self.text += text
        return self.read(ended=False)

    def flush(self) -> Iterator[Event]:
        """The rest, at the end of the text."""
        return self.read(ended=True)

    def read(self, *, ended: bool) -> Iterator[Event]:
        """Read up to the end, or to where a delimiter may have begun."""
        try:
            while (found := self.find(ended=ended)) is not None:
                match, had_text = found.match, self.current is not None and self.current.is_shown
                yield from self.take(match.start())
                if found.opens:
                    yield from self.close("", {}, is_cut=False)
                    self.position = match.end()
                    self.current = OpenField(found.field, match[0], groups(match), is_shown=True)
                    yield Opened(found.field, self.current.captures)
                else:
                    self.position = match.end()
                    yield from self.close(match[0], groups(match), is_cut=False)
                    if not had_text and not match[0]:
                        break  # an empty delimiter of a field without text would be found again and again
            yield from self.take(self.held)
            if ended:
                yield from self.take(len(self.text))
                yield from self.close("", {}, is_cut=True)
        except TimeoutError as error:
            raise PackageError("a regular expression of the response template takes too long; give another template") from error

    def find(self, *, ended: bool) -> Found | None:
        """The first delimiter that is certain; None if there is none, or if one that may have begun comes before it."""
        best, self.held = None, len(self.text)
        for field, delimiter, opens in self.watched():
            match = self.search(delimiter, ended=ended, closes=None if opens or not self.is_ruled else field)
            if match is None:
                continue
            if not ended and (match.partial or may_change(delimiter, match, self.text)):
                self.held = min(self.held, match.start())
                continue
            found = Found(field, opens, match)
            best = found if best is None or found.order < best.order else best
        return best if best is not None and (ended or best.match.start() < self.held) else None

    def search(self, delimiter: Delimiter, *, ended: bool, closes: Field | None) -> regex.Match[str] | None:
        """The first match of a delimiter, also a partial one; of one that closes a field, the first after its whole content."""
        place = self.position
        while True:
            match = delimiter.pattern.search(self.text, place, partial=not ended, timeout=MATCH_SECONDS)
            if match is None or match.partial or closes is None or self.current is None:
                return match
            content = "".join(self.current.parts) + self.text[self.position : match.start()]
            if is_whole(content, closes.content, closes.content_args):
                return match
            place = max(match.end(), match.start() + 1)

    def watched(self) -> Iterator[tuple[Field, Delimiter, bool]]:
        """The delimiters that count now: what closes the open field; outside all fields, what opens one."""
        current, implicit = self.current, self.template.implicit
        if current is None or current.field is implicit:
            yield from ((field, field.open, True) for field in self.template.fields.values() if field.open is not None)
        if current is not None and current.field.close is not None:
            yield current.field, current.field.close, False

    def take(self, end: int) -> Iterator[Event]:
        """Give the text up to `end` to the open field."""
        text, self.position = self.text[self.position : end], max(self.position, end)
        if not text or self.current is None:
            return
        if not self.current.is_shown:
            self.current.is_shown = True
            yield Opened(self.current.field, {})
        self.current.parts.append(text)
        yield Piece(self.current.field, text)

    def close(self, closing: str, captures: dict[str, str], *, is_cut: bool) -> Iterator[Event]:
        """End the open field, if it has begun."""
        current, self.current = self.current, self.implicit()
        if current is None or not current.is_shown:
            return
        field, text = current.field, "".join(current.parts)
        try:
            value = parse_content(text, field.content, field.content_args)
            value = transformed(value, field.transform, {**current.captures, **captures}, each=field.transform_each)
        except ValueError:
            yield Broken(field, current.opening + text + closing, is_cut)
        else:
            yield Closed(field, value, current.opening + text + closing, is_cut)


def groups(match: regex.Match[str]) -> dict[str, str]:
    """The named groups of a match."""
    return {name: value for name, value in match.groupdict().items() if value is not None}


def may_change(delimiter: Delimiter, match: regex.Match[str], text: str) -> bool:
    """Return whether more text could change a complete match, or show that it is none."""
    if match.end() < len(text):
        if delimiter.literals:
            return False
        longer = delimiter.pattern.match(text + "\x00", match.start(), timeout=MATCH_SECONDS)  # a match at `$` ends here
        return longer is None or longer.span() != match.span() or longer.groupdict() != match.groupdict()
    return match.start() == match.end() or delimiter.can_extend
