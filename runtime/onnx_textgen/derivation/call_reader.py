"""Reads the form of tool calls from answers in which a chat template wrote them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..text.prefixes import common_prefix
from .answer_form import NUMBER, CallForm, in_quotes

NAMES = ("fnalpha", "fnbeta")
ARGUMENTS = ({"argone": "valueone"}, {"argtwo": "valuetwo"})
BOTH = {**ARGUMENTS[0], **ARGUMENTS[1]}
CLOSERS = ">]})|\uff5c \n"
"""Characters that can end a mark."""
QUOTED = re.compile(
    NAMES[0] + r"(?P<middle>\s*)\{argone:(?P<open>[^\w{}]\S*?)valueone(?P<close>\S+?),argtwo:(?P=open)valuetwo(?P=close)\}"
)
"""A call with other marks around texts than quotation marks."""


@dataclasses.dataclass(frozen=True, slots=True)
class CallReader:
    """Reads the form of calls from answers that a template wrote."""

    one: str
    """One call, with `ARGUMENTS[0]`."""
    two: str
    """Two calls."""
    wide: str
    """One call with `BOTH` arguments."""
    number: str
    """One call with the number 1 as its argument."""
    turn_end: str
    eos_token: str

    def read(self) -> CallForm | None:
        """The form; None if the calls are written in another way than `CallForm` knows."""
        form = self.read_kind(self.one.index(NAMES[0]))
        if form is None or (form.kind in ("named", "tags") and not (form.begin + form.open).strip()):
            return None  # any text would be a name
        are_apart = form.kind != "object" or bool((form.open + form.close).strip())  # not only by white space
        return dataclasses.replace(form, several=NAMES[1] in self.two and are_apart)

    def read_kind(self, at_name: int) -> CallForm | None:
        """The form by what the arguments look like."""
        for start, value, end in json_values(self.one, at_name):
            found = objects_of(value)
            if found and (form := self.read_json(self.one[:start], found, end, is_list=isinstance(value, list))) is not None:
                return form
        if re.match(rf"\[?{NAMES[0]}\(argone=", self.one[max(0, at_name - 1) :]):
            after = self.without_turn_end(self.one[at_name:].partition(")")[2].removeprefix("]"))
            return CallForm("python", begin=self.one[:at_name].removesuffix("["), end=after)
        arguments = next(((i, j) for i, _, j in json_values(self.one, len(self.one)) if i > at_name), None)
        if arguments is not None:
            return self.read_named(at_name, *arguments)
        quoted = QUOTED.match(self.wide, self.wide.index(NAMES[0])) if NAMES[0] in self.wide else None
        return self.read_tags() if quoted is None else self.read_quoted(at_name, quoted)

    def read_json(self, before_calls: str, found: Sequence[Mapping[str, Any]], end: int, *, is_list: bool) -> CallForm | None:
        """Calls that are JSON objects."""
        name_keys, arguments_keys = path_of(found[0], NAMES[0]), path_of(found[0], ARGUMENTS[0])
        if name_keys is None or arguments_keys is None:
            return None
        after = self.without_turn_end(self.one[end:])
        order = list(found[0])
        first = {key: found[0][key] for key in order[: order.index(name_keys[0])] if key not in arguments_keys}
        second = next((each for _, value, _ in json_values(self.two, len(self.two)) for each in objects_of(value)[-1:]), {})
        before = {key: numbered(str(value), str(second.get(key, value))) for key, value in first.items()}
        keys: dict[str, Any] = {"name_keys": name_keys, "arguments_keys": arguments_keys, "before": before}
        if is_list:
            return CallForm("list", begin=before_calls, end=after, **keys)
        spans = [(start, stop) for start, value, stop in json_values(self.two, len(self.two)) if objects_of(value)]
        return CallForm("object", **keys, **self.around(before_calls, after, spans))

    def read_named(self, at_name: int, start: int, end: int) -> CallForm:
        """Calls with the name as text and the arguments as JSON."""
        values = [(start, stop) for start, _, stop in json_values(self.two, len(self.two))]
        spans = [(at, *value) for at, value in zip((self.two.find(name) for name in NAMES), values, strict=False) if at >= 0]
        middles = [self.two[at + len(name) : begin] for name, (at, begin, _) in zip(NAMES, spans, strict=False)]
        middle = self.one[at_name + len(NAMES[0]) : start]
        around = self.around(self.one[:at_name], self.without_turn_end(self.one[end:]), [(at, stop) for at, _, stop in spans])
        return CallForm("named", middle=numbered(middle, middles[-1] if middles else middle), **around)

    def read_quoted(self, at_name: int, found: re.Match[str]) -> CallForm | None:
        """Calls with the name as text, and arguments like JSON with other marks around texts, and none around keys."""
        opening, closing = found["open"], found["close"]
        length = len(in_quotes(ARGUMENTS[0], opening, closing))
        starts = [self.two.find(name) + len(name) + len(found["middle"]) for name in NAMES if name in self.two]
        spans = [(at - len(found["middle"]) - len(name), at + length) for at, name in zip(starts, NAMES, strict=False)]
        end = at_name + len(NAMES[0]) + len(found["middle"]) + length
        around = self.around(self.one[:at_name], self.without_turn_end(self.one[end:]), spans)
        return CallForm("named", middle=found["middle"], quotes=(opening, closing), **around)

    def read_tags(self) -> CallForm | None:
        """Calls with each argument in a tag."""
        places = [self.wide.find(text) for text in (NAMES[0], "argone", "valueone", "argtwo", "valuetwo")]
        if places != sorted(places) or places[0] < 0:
            return None
        texts = (NAMES[0], "argone", "valueone", "argtwo")
        parts = [self.wide[i + len(text) : j] for text, i, j in zip(texts, places[:-1], places[1:], strict=True)]
        to_key, tag_middle, to_next = parts[0], parts[1], parts[2]
        tag_open = common_opening(to_key, to_next)
        tag_close = to_next.removesuffix(tag_open)
        if tag_middle != parts[3] or not tag_close.strip():
            return None
        rest = self.wide[places[4] + len("valuetwo") :]
        after = self.without_turn_end(rest).removeprefix(tag_close)
        names = [(self.two.find(name), self.two.find(value)) for name, value in zip(NAMES, ("valueone", "valuetwo"), strict=True)]
        spans = [(at, to + len("valueone") + len(tag_close)) for at, to in names if 0 <= at < to]
        around = self.around(self.wide[: places[0]], after, spans)
        middle = to_key.removesuffix(tag_open)
        plain = self.number[self.number.find("argone") + len("argone") :].partition(tag_close)[0]
        other = plain.removesuffix("1") if plain.endswith("1") and plain != tag_middle + "1" else ""
        tags: dict[str, Any] = {"tag_open": tag_open, "tag_middle": tag_middle, "tag_middle_json": other, "tag_close": tag_close}
        return CallForm("tags", middle=middle, **tags, **around)

    def around(self, before: str, after: str, spans: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """The texts around a call, and around all calls; `spans`: where the two calls are in the answer that has two."""
        if len(spans) != 2 or not self.two.startswith(before):
            return {"open": before, "close": after}
        gap, rest = self.two[spans[0][1] : spans[1][0]], self.without_turn_end(self.two[spans[1][1] :])
        opening = common_opening(before, gap)
        gap = gap.removesuffix(opening)
        closing = shared_beginning(gap, rest)
        return {
            "begin": before.removesuffix(opening),
            "open": opening,
            "close": closing,
            "between": gap.removeprefix(closing),
            "end": rest.removeprefix(closing),
        }

    def without_turn_end(self, text: str) -> str:
        """A text without the end of the turn."""
        ends = (self.turn_end, self.turn_end.strip(), self.eos_token)
        found = next((end for end in ends if end and end in text), "")
        return text.partition(found)[0] if found else text


def json_values(text: str, before: int) -> Iterator[tuple[int, Any, int]]:
    """The JSON objects and lists that begin before a place: where each begins, its value, and where it ends."""
    place, decoder = 0, json.JSONDecoder()
    while (found := re.compile(r"[{\[]").search(text, place)) is not None and found.start() < before:
        try:
            value, end = decoder.raw_decode(text, found.start())
        except ValueError:
            place = found.start() + 1
        except RecursionError:
            return  # no template of a model nests so deeply
        else:
            yield found.start(), value, end
            place = end


def objects_of(value: object) -> list[Mapping[str, Any]]:
    """The calls that a JSON value holds."""
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, Mapping) and any(name in json.dumps(item) for name in NAMES)]


def path_of(data: Mapping[str, Any], wanted: object) -> tuple[str, ...] | None:
    """The keys on the way to a value; arguments may be JSON in a text."""
    for key, value in data.items():
        if value == wanted:
            return (key,)
        if isinstance(value, Mapping) and (rest := path_of(value, wanted)) is not None:
            return (key, *rest)
    return None


def numbered(one: str, other: str) -> str:
    """A text of the first call with `NUMBER` where the second call has 1 instead of 0.

    >>> numbered(":0<|json|>", ":1<|json|>"), numbered("<v2>", "<v2>")
    (':{number}<|json|>', '<v2>')
    """
    parts, others = (re.split(r"(\d+)", text) for text in (one, other))
    if len(parts) != len(others):
        return one
    return "".join(NUMBER if pair == ("0", "1") else pair[0] for pair in zip(parts, others, strict=True))


def common_opening(one: str, other: str) -> str:
    r"""The longest text that both end with, without the end of a mark before it.

    >>> common_opening("<calls><call>", "</call><call>"), common_opening("<call>\n", "</call>\n<call>\n")
    ('<call>', '<call>\n')
    """
    suffix = shared_beginning(one[::-1], other[::-1])[::-1]
    before = one.removesuffix(suffix)
    if before.rfind("<") > before.rfind(">"):  # it begins within a mark
        suffix = suffix.partition(">")[2]
    return suffix if suffix == one and suffix[:1] not in CLOSERS else suffix.lstrip(CLOSERS)


def shared_beginning(one: str, other: str) -> str:
    """The longest text that both begin with."""
    return one[: common_prefix(one, other)]
