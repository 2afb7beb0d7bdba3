"""An answer is divided as transformers divides it, however it is cut into pieces; and what cannot be read is not lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("transformers")

from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_parsing import parse_response

from onnx_textgen.answers.response_parser import Broken, Closed, Event, Piece, ResponseParser
from onnx_textgen.answers.response_template import read_response_template
from onnx_textgen.chat.chat_format import ChatFormat
from onnx_textgen.errors import PackageError
from onnx_textgen.text.tokenizer import TextTokenizer
from support.examples import examples

CALL = {"type": "function", "function": "{content}"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
TEMPLATES: dict[str, dict[str, Any]] = {
    "tags of XML around JSON": {
        "start_anchor": "<a>",
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>"},
            "tool_calls": {"open": "<call>", "close": "</call>", "repeats": True, "content": "json", "transform": CALL},
            "content": {"close": ["<end>", "<endless>"]},
        },
    },
    "channels": {
        "start_anchor_pattern": r"<a>\s*",
        "fields": {
            "thinking": {"open": "<c>analysis<m>", "close": "<end>", "repeats": True, "join": "\n"},
            "content": {"open": "<c>final<m>", "close": "<end>", "content_args": {"strip": False}},
            "tool_calls": {
                "open_pattern": r"<c>to=(?P<name>\w+).*?<m>",
                "close": "</call>",
                "repeats": True,
                "content": "json",
                "content_args": {"unquoted_keys": True, "string_delims": [["<|", "|>"]]},
                "transform": NAMED,
            },
        },
    },
    "arguments in tags": {
        "start_anchor": ["<a>", "<b>"],
        "fields": {
            "thinking": {"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"},
            "tool_calls": {
                "open_pattern": r"<call>\s*<f=(?P<name>\w+)>",
                "close_pattern": r"</f>(?:\s*</call>)?",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {
                    "tag_pattern": r"<p=(?P<key>\w+)>(?P<value>.*?)</p>",
                    "value_parser": {"name": "json", "args": {"allow_non_json": True}},
                    "merge_duplicates": True,
                },
                "transform": NAMED,
            },
            "content": {},
        },
    },
    "lines, numbers and lists": {
        "start_anchor": "<a>",
        "defaults": {"role": "assistant"},
        "fields": {
            "meta": {"open": "<meta>", "close": "</meta>", "content": "kv-lines", "content_args": {"kv_sep": "="}},
            "count": {"open": "<n>", "close": "</n>", "content": "int"},
            "tool_calls": {
                "open": "<call>",
                "close": "</call>",
                "content": "python-call-list",
                "transform_each": True,
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
            },
            "content": {},
        },
    },
}
PIECES = [
    *("<think>", "</think>", "<call>", "</call>", "<end>", "<endless>", "<c>final<m>", "<c>analysis<m>", "<c>to=look x<m>", "</f>"),
    *(
        "<f=look>",
        "<p=a>",
        "</p>",
        "<meta>",
        "</meta>",
        "<n>",
        "</n>",
        "a=b",
        "\n",
        " ",
        "<",
        "</",
        "text",
        "é🙂",
        "7",
        "true",
        "<thi",
    ),
    *('{"name": "f", "arguments": {"x": "<call>"}}', '{"a": "é\\n\\""}', "{a: <|q|>}", '[look(a="x", b=[1, {"c": None}]), stop()]'),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def read(template: dict[str, Any], text: str, cuts: list[int]) -> list[Event]:
    """Every event of a text that comes in pieces."""
    parser, events, last = ResponseParser(read_response_template(template)), list[Event](), 0
    for cut in [*sorted(min(cut, len(text)) for cut in cuts), len(text)]:
        events += parser.push(text[last:cut])
        last = cut
    return [*events, *parser.flush()]


def message_of(template: dict[str, Any], events: list[Event]) -> dict[str, Any]:
    """The message that the events make, as transformers makes it."""
    made: dict[str, Any] = dict(template.get("defaults", {}))
    for event in events:
        if isinstance(event, Closed):
            name, field = event.field.name, event.field
            if field.join is not None and name in made:
                made[name] += field.join + event.value
            elif field.repeats and field.join is None:
                made.setdefault(name, []).append(event.value)
            else:
                made[name] = event.value
    return {name: value for name, value in made.items() if name in template.get("defaults", {}) or value not in ("", [], {}, None)}


@pytest.mark.parametrize("name", TEMPLATES)
@examples(60)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=8))
def test_a_text_in_any_pieces_is_divided_as_transformers_divides_it(name: str, text: str, cuts: list[int]) -> None:
    template = TEMPLATES[name]
    events = read(template, text, cuts)
    try:
        expected = parse_response(text, template, prefix="")
    except ValueError:
        assert any(isinstance(event, Broken) for event in events), "transformers refuses what we cannot read"
    else:
        assert message_of(template, events) == expected


@examples(60)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=8))
def test_nothing_that_the_model_wrote_is_lost(text: str, cuts: list[int]) -> None:
    call = {"open": "<call>", "close": "</call>", "repeats": True, "content": "json"}
    parts, body = list[str](), ""
    for event in read({"start_anchor": "<a>", "fields": {"tool_calls": call, "content": {}}}, text, cuts):
        if isinstance(event, Piece) and event.field.name == "content":
            parts.append(event.text)
        elif isinstance(event, Piece):
            body += event.text
        elif isinstance(event, Closed | Broken) and event.field.name == "tool_calls":
            written = "<call>" + body + ("" if event.is_cut else "</call>")
            assert not isinstance(event, Broken) or event.text == written
            body = ""
            parts.append(written)
    assert "".join(parts) == text


def test_the_text_before_a_delimiter_is_not_held_back() -> None:
    parser = ResponseParser(read_response_template(TEMPLATES["tags of XML around JSON"]))
    seen = [
        "".join(event.text for event in parser.push(text) if isinstance(event, Piece))
        for text in ("Hello <", "thin", "k", " <3", "!")
    ]
    assert seen == ["Hello ", "", "", "<think <3", "!"]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (5, "should be a JSON object, found 5"),
        ({"start_anchor": "a"}, "should have fields, a JSON object that is not empty"),
        ({"fields": {"content": {}}}, "should have start_anchor"),
        ({"start_anchor": "a", "fields": {"content": {}}, "version": 2}, "has version 2"),
        ({"start_anchor": "a", "fields": {"content": {}}, "fiels": 1}, "has the unknown key 'fiels'"),
        ({"start_anchor": "a", "fields": {"x": {"open": "<", "opens": 1}}}, "field 'x' has the unknown key 'opens'"),
        ({"start_anchor": "a", "fields": {"x": {"open": "<", "open_pattern": "<"}}}, "has both open and open_pattern"),
        ({"start_anchor": "a", "fields": {"x": {"open_pattern": "("}}}, "should have open_pattern as a regular expression"),
        ({"start_anchor": "a", "fields": {"x": {"open": ""}}}, "should have open as a text or a list of texts, none empty"),
        ({"start_anchor": "a", "fields": {"x": {}, "y": {}}}, "several fields without open (x, y)"),
        ({"start_anchor": "a", "fields": {"x": {"content": "yaml"}}}, "has content 'yaml'; the kinds are text, int"),
        ({"start_anchor": "a", "fields": {"x": {"join": ""}}}, "should have join as a text, and repeats true"),
        ({"start_anchor": "a", "fields": {"x": {"transform": {"a": "b {content}"}}}}, "has text around a placeholder"),
        ({"start_anchor": "a" * 70_000, "fields": {"x": {}}}, "more than 65,536 characters"),
    ],
)
def test_what_is_wrong_with_a_template_is_said_in_one_line(template: Any, said: str) -> None:
    with pytest.raises(PackageError) as caught:
        read_response_template(template)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_regular_expression_that_never_ends_is_stopped() -> None:
    template = {"start_anchor": "a", "fields": {"x": {"open_pattern": "(a|aa)+$b"}, "content": {}}}
    parser = ResponseParser(read_response_template(template))
    with pytest.raises(PackageError, match="takes too long"):
        list(parser.push("a" * 5_000 + "c"))
        list(parser.flush())


def test_an_anchor_that_is_never_found_is_not_searched_for_without_end() -> None:
    template = {"start_anchor_pattern": "(a|aa)+$b", "fields": {"content": {}}}
    tokenizer = TextTokenizer(json.dumps({"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}))
    chats = ChatFormat("", tokenizer, bos_token=None, eos_token=None, response_template=template)
    with pytest.raises(PackageError, match="start_anchor_pattern of the response template takes too long"):
        chats.prefix("a" * 5_000 + "c", "")
