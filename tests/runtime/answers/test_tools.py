"""Tools are described as transformers describes them, and arguments get the types that the schema names."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pytest

pytest.importorskip("transformers")

from hypothesis import given
from hypothesis import strategies as st
from transformers.utils import get_json_schema
from transformers.utils.chat_parsing.response_parser import _coerce

from onnx_textgen.answers.tools import Tool, read_tools, typed
from onnx_textgen.errors import OptionError


def get_weather(city: str, days: int = 1, units: Literal["c", "f"] = "c") -> str:
    """Tell the weather.

    It is from a service.

    Args:
        city: The city, with
            its country
        days: How many days
        units: The unit

    Returns:
        A sentence.
    """
    return city * days + units


def place(point: list[float], names: dict[str, int], exact: bool, note: str | None = None) -> None:
    """Place a point.

    Args:
        point: Its coordinates
        names: Its names
        exact: Whether it is exact
        note: A note
    """


def nothing() -> None:
    """Do nothing."""


def same(one: Any, other: Any) -> bool:
    """Whether two schemas say the same: transformers writes `nullable` where we write `null`, and leaves out enums' types."""
    return json.dumps(plain(one), sort_keys=True) == json.dumps(plain(other), sort_keys=True)


def plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: plain(value) for key, value in schema.items() if key not in ("return", "required") or value}
    if made.pop("nullable", False):
        made = {"description": made.pop("description", None), "anyOf": [made, {"type": "null"}]}
    return made


@pytest.mark.parametrize("function", [get_weather, place, nothing])
def test_a_function_has_the_schema_that_transformers_gives_it(function: Any) -> None:
    ours = read_tools([function])[0].as_json()
    expected = get_json_schema(function)
    expected["function"].pop("return", None)
    assert same(ours, expected)


def test_annotations_with_descriptions_and_sequences_are_read() -> None:
    def search(words: Annotated[Sequence[str], "what to look for"], *, filters: Mapping[str, Any]) -> None:
        """Search."""

    assert read_tools([search])[0].parameters == {
        "type": "object",
        "properties": {
            "words": {"type": "array", "items": {"type": "string"}, "description": "what to look for"},
            "filters": {"type": "object", "additionalProperties": {}},
        },
        "required": ["words", "filters"],
    }


def test_a_tool_as_json_reaches_the_template_unchanged() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "d", "strict": True, "parameters": {"properties": {}}}}
    assert read_tools([tool])[0].as_json() == tool
    assert read_tools([tool])[0].strict


KINDS = ["string", "integer", "number", "boolean", "null", "object", "array", "other"]


@given(
    text=st.one_of(
        st.text(max_size=6), st.sampled_from(["7", "-3.0", "1e3", "true", "null", "{}", "[1]", "nan", " 5 ", "0", "False"])
    )
)
def test_texts_get_the_types_that_transformers_gives_them(text: str) -> None:
    for kinds in ([kind] for kind in KINDS):
        ours, expected = typed(text, kinds), _coerce(text, tuple(kinds))
        assert (type(ours), ours) == (type(expected), expected), (text, kinds)


def untyped(a) -> None:  # type: ignore[no-untyped-def]
    """Take anything."""


def bytes_only(a: bytes) -> None:
    """Take bytes."""


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([untyped], "the argument a of untyped has no annotation; add one, such as a: str"),
        ([bytes_only], "which JSON does not have"),
        ([lambda: None], "a tool should be a named function or a JSON schema"),
        ([5], "a tool should be a named function or a JSON schema"),
        ("abc", "tools should be a list of functions or JSON schemas"),
        ([{"type": "web_search"}], "a tool of the type 'web_search' cannot be called here"),
        ([{"name": "f", "parameters": {"type": "string"}}], "should be a JSON Schema of an object with properties"),
        ([{"name": "f", "parameters": {"properties": {"a": 5}}}], "the parameter a of the tool f should be a JSON Schema"),
        ([{"name": "f"}] * 129, "at most 128 tools can be given, found 129"),
        ([nothing, nothing], "two tools are called nothing"),
    ],
)
def test_what_cannot_be_a_tool_is_said(tools: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said.replace("(", r"\(")) as caught:
        read_tools(tools)
    assert "\n" not in str(caught.value)


def test_arguments_that_a_schema_does_not_name_are_refused_by_default() -> None:
    assert Tool("f").schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert Tool("f", parameters={"additionalProperties": True}).schema["additionalProperties"] is True


@pytest.mark.parametrize("schema", [{"type": None}, {"type": 5}, {"type": {"a": 1}}, {"anyOf": 5}, {"oneOf": [5]}])
@pytest.mark.parametrize("required", [None, 5, "a", ["b"]])
def test_a_schema_that_no_validator_has_seen_does_no_harm(schema: dict[str, Any], required: Any) -> None:
    (tool,) = read_tools([{"name": "f", "parameters": {"type": "object", "properties": {"a": schema}, "required": required}}])
    assert tool.typed({"a": "1"}) == {"a": "1"}
    assert list(tool.ordered_properties()) == [("a", schema, False)]


@pytest.mark.parametrize("keyword", ["anyOf", "allOf", "oneOf"])
def test_a_schema_that_refers_to_itself_many_times_is_read_at_once(keyword: str) -> None:
    schema = {keyword: [{"$ref": "#/$defs/A"}] * 3}
    start = time.process_time()
    for parameters in ({"$ref": "#/$defs/A"}, {"properties": {"x": {"$ref": "#/$defs/A"}}}):
        (tool,) = read_tools([{"name": "f", "parameters": {**parameters, "$defs": {"A": schema}}}])
        assert tool.typed({"x": "1"}) == {"x": "1"}
        list(tool.ordered_properties())
    assert time.process_time() - start < 1, "followed to every end, it would be hours"
