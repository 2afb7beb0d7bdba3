"""JSON values of any kind, and others in the place of those of a file."""

from __future__ import annotations

import copy
import functools
import json
import operator
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

Draw = st.DrawFn
Spot = tuple[Any, Any]
"""A list or an object, and the index or key of one of its values."""

NUMBERS = (0, -1, 1, 2, 7, 255, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**4_000, 0.5, -0.0, 1e308, 5e-324, float("nan"))
TEXTS = (
    *("", "x", "ort", "standard", "fp32", "int4", "unknown", "\0", "a\nb\r\nc", "\ud800", "\x1b]0;owned\x07", "\x9b31m", "🙂", "1"),
    *("\u202eabc", "../../etc/passwd", "/etc/passwd", "{0.__class__}", "{{ 7*7 }}", "%s%n", "[bold red]x[/]", "[/nothing]"),
    *("x" * 100_000, "0" * 64),
)  # fmt: skip
KEYS = ("format_version", "sha256", "files", "size", "geometry", "session_options", "__class__", "model.onnx", "", "\0", "\ud800")
OTHERS: tuple[Callable[[], Any], ...] = (
    lambda: [None] * 1_000,
    lambda: {"a" * 10_000: 1},
    lambda: functools.reduce(lambda inner, _: [inner], range(60), [1]),
    lambda: functools.reduce(lambda inner, _: {"summary": inner}, range(60), {}),
)
places = st.integers(0, 2**24 - 1)
"""Of 2^24 in any file: so many that hypothesis takes each as often as any other."""
numbers = st.sampled_from(NUMBERS) | st.integers() | st.floats()
texts = st.sampled_from(TEXTS) | st.text(max_size=20)
json_values = st.recursive(
    st.sampled_from((None, True, False)) | numbers | texts | st.sampled_from(OTHERS).map(operator.call),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | texts, inner, max_size=3),
    max_leaves=4,
)


LONG_DIGITS = "9" * 5_000
ODD_JSON = (
    *("null", "true", "false", "0", "-0", "1", "2", "-1", "3.0", "0.5", "-0.5", "1e308", "-1e308", "1e999", "-1e999", "1e-400"),
    *("NaN", "Infinity", "-Infinity", "9007199254740993", "18446744073709551616", "9" * 400, LONG_DIGITS, f"-{LONG_DIGITS}"),
    *('""', '" "', '"a"', '"0"', '"1"', '"-1"', '"true"', '"null"', '"NaN"', '"9e999"', f'"{LONG_DIGITS}"', f'"{"a" * 100_000}"'),
    *('"\\u0000"', '"\\ud800"', '"\\udfff\\ud800"', '"\\ud83d\\ude00"', '"a\\nb\\r\\u2028"', '"\\u001b]0;owned\\u0007"'),
    *("[]", "[null]", "[[]]", "[1]", "[0, 1, 2]", "[-1]", "[999999]", "[true]", "[1e999]", '["a"]', '[""]', '["a", 1, []]'),
    *('["\\ud800"]', "[[1], [2]]", '["a", [1]]', "[[[[[1]]]]]", f"[{LONG_DIGITS}]", f"[{'1, ' * 5_000}1]"),
    f"[{'[' * 200}{']' * 200}]",
    *("{}", '{"a": 1}', '{"": null}', '{"1": 1}', '{"1": -1e999}', '{"1": "a"}', '{"-1": 1}', '{"1.5": 1}', '{"\\u0663": 1}'),
    *(f'{{"{LONG_DIGITS}": 1}}', '{"999999": 1}', '{"\\ud800": 1}', '{"a": {"a": {"a": {"a": []}}}}', '{"1": 1, "01": 2}'),
    *('{"type": "text"}', '{"type": "json_object"}', '{"type": "json_schema"}', '{"type": 5}', '{"include_usage": true}'),
    *('{"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}', '{"type": "json_schema", "json_schema": {"schema": 5}}'),
    *('{"type": "json_schema", "json_schema": {"schema": {"type": "object", "required": ["a"]}}}', '{"type": "object"}'),
    *('[{"role": "user", "content": "a"}]', '[{"role": null, "content": null}]', '[{"content": 1}]'),
    *('[{"role": "\\ud800", "content": "\\ud800"}]', '[{"role": "user", "content": [{"type": "text"}]}]'),
    *('[{"role": "user", "content": {"a": 1}}]', '[{"role": "user", "content": [{"type": "image_url", "image_url": "a"}]}]'),
    '[{"role": "tool", "content": "a", "tool_calls": [[]], "name": {}}]',
    *('"(a+)+$"', '"["', '"(?=a)"', '"a{1000000}"', '"root ::= root"', '"start: start"', '"/etc/passwd"', '"http://127.0.0.1/"'),
    *('"never"', '"shift"', '"stop"', '"auto"', '"none"', '"required"', '"plain"', '"chatty"', '"../plain"', '"plain\\u0000"'),
)  # fmt: skip
json_texts = st.sampled_from(ODD_JSON) | json_values.map(json.dumps)
"""JSON that a server may get, from clients that write numbers of any length and the same key twice too."""


def spots(value: Any) -> Iterator[Spot]:
    """Every place in a JSON value."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from spots(value[key])


@st.composite
def with_other_values(draw: Draw, value: Any, skip: Callable[[Any, Spot], bool] = lambda *_: False) -> Any:
    """The same with one to three values that are gone, more, renamed, copied or others; those at spots that `skip` names stay."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.sampled_from((1, 1, 2, 3)))):
        found = [spot for spot in spots(value) if not skip(value, spot)]
        if not found:
            break
        holder, key = found[draw(st.integers(0, len(found) - 1))]
        before, what = holder[key], draw(st.integers(0, 9))
        if what == 0:
            del holder[key]
        elif what == 1 and isinstance(holder, dict):
            holder[draw(st.sampled_from(KEYS))] = draw(json_values)
        elif what == 2 and isinstance(holder, dict):
            holder[draw(st.sampled_from(KEYS))] = holder.pop(key)
        elif what == 3:
            other, there = found[draw(st.integers(0, len(found) - 1))]
            holder[key] = copy.deepcopy(other.get(there) if isinstance(other, dict) else other[there : there + 1])
        elif what <= 5 and isinstance(before, int | float) and not isinstance(before, bool):
            near = (before + 1, before - 1, -before, before * 1_000, before * 2**70, float(before), str(before))
            holder[key] = draw(st.sampled_from(near))
        elif what <= 5 and isinstance(before, list):
            holder[key] = draw(st.sampled_from((before * 300, before[::-1], before[:-1], [before], dict(enumerate(before)))))
        else:
            holder[key] = draw(json_values)
    return value


@st.composite
def damaged(draw: Draw, content: bytes) -> bytes:
    """Bytes that are others, more or fewer."""
    data = bytearray(content)
    place = draw(places) * len(data) >> 24
    match draw(st.integers(0, 4)):
        case 0:
            del data[place:]
        case 1:
            data[place:place] = draw(st.binary(min_size=1, max_size=40))
        case 2:
            del data[place : place + draw(st.integers(1, 40))]
        case 3:
            data[place] ^= 1 << draw(st.integers(0, 7))
        case _:
            for place in draw(st.lists(places, min_size=1, max_size=20)):
                data[place * len(data) >> 24] = draw(st.integers(0, 255))
    return bytes(data)
