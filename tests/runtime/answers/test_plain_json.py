"""Only what every reader of JSON takes is read as JSON."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from onnx_textgen.answers.contents import parse_content
from onnx_textgen.answers.plain_json import DEEPEST, plain_json, read_json


@pytest.mark.parametrize(
    "text", ["1e999", "[-1e999]", "NaN", "Infinity", r'"\ud83d"', r'{"\udc00": 1}', "9" * 5_000, "[" * 101 + "]" * 101]
)
def test_json_that_other_readers_refuse_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_json(text)


@pytest.mark.parametrize("value", [{1: 2}, {(1, 2): 2}, {b"x": 1}, b"x", 1j, (1,), ..., {"x": {1}}, [16**4_500], float("nan")])
def test_values_of_python_that_json_does_not_have_are_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        plain_json(value)


@pytest.mark.parametrize(
    "text", ["null", r'"\ud83d\ude00\u0000"', "1e308", "-0.0", "9" * 4_000, '{"": [true]}', "[" * DEEPEST + "]" * DEEPEST]
)
def test_plain_json_is_read_as_python_reads_it(text: str) -> None:
    assert read_json(text) == json.loads(text)


LOOSE = {"string_delims": [["<|", "|>"]], "unquoted_keys": True}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{x: <|a\x010\x02 {key: "q"|>, y : 1}', {"x": 'a\x010\x02 {key: "q"', "y": 1}),
        ('{x: "{key: <|a|>", y: <|b|>}', {"x": "{key: <|a|>", "y": "b"}),
    ],
)
def test_texts_between_marks_of_a_models_own_are_taken_as_they_are(text: str, value: Any) -> None:
    assert parse_content(text, "json", LOOSE) == value


@pytest.mark.parametrize("text", ["\x010\x02", "{x: <|a}", '{x: "a}', "<|a"])
def test_json_with_loose_marks_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        parse_content(text, "json", LOOSE)


N = 16_000


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *[
            ("python-call-list", f"[{text}")
            for text in ("a" * N, "f(), " * (N // 4), "'" + "\\'" * N, "a " * N, "f(x=" + "-" * N, "a." * N)
        ],
        *[("json", text) for text in ("<|" * N, '"' * N, '\\"' * N, "{" + "," * N, "{," + " " * N, "{" + ",a " * N, "[" * N)],
    ],
    ids=range(13),
)
def test_a_content_of_any_length_is_read_in_time_that_grows_with_it(kind: str, text: str) -> None:
    start = time.process_time()
    with pytest.raises(ValueError):
        parse_content(text, kind, LOOSE)
    assert time.process_time() - start < 0.3, "if each place were searched again, it would be seconds"
