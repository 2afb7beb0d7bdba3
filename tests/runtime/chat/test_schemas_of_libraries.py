"""Tools as pydantic and zod write them: a call that fits is taken in every form of calls, and an odd tool is no harm to others."""

from __future__ import annotations

import enum
import json
import logging
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Literal

import pytest

from onnx_textgen.answers.answer_reader import AnswerReader
from onnx_textgen.answers.response_template import read_response_template
from onnx_textgen.answers.tools import Tool, read_tools
from onnx_textgen.chat.call_grammar import grammar_of_calls
from onnx_textgen.chat.chat_format import expressible
from onnx_textgen.derivation.answer_form import PROMPTED, AnswerForm, CallForm
from onnx_textgen.derivation.form_templates import response_template_of
from onnx_textgen.errors import OptionError
from onnx_textgen.sampling.grammar import Rules
from onnx_textgen.text.tokenizer import TextTokenizer

pytest.importorskip("llguidance")
pydantic = pytest.importorskip("pydantic")
Json = Mapping[str, Any]
TAGS = CallForm(
    "tags", open="<c=", middle=">\n", close="</c>", between="\n", tag_open="<p=", tag_middle=">\n", tag_close="\n</p>\n"
)
FORMS = {"object": PROMPTED, "named": CallForm("named", open="<call>", middle="\n", close="</call>"), "tags": TAGS}
X = {"x": {"type": "integer"}}
OBJECT = {"type": "object", "properties": X, "required": ["x"]}
DRAFT = "https://json-schema.org/draft/2020-12/schema"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(pydantic.BaseModel):
    lat: float
    kind: Literal["place"] = "place"


class Road(pydantic.BaseModel):
    kind: Literal["road"]
    names: set[str]


class Everyday(pydantic.BaseModel):
    count: Annotated[int, pydantic.Field(gt=0, multiple_of=2)]
    colour: Colour
    where: Annotated[Place | Road, pydantic.Field(discriminator="kind")]
    day: date
    pair: tuple[int, str]
    names: set[str] = pydantic.Field(default_factory=set)
    maybe: int | None = None
    more: dict[str, float] = pydantic.Field({})
    any_value: Any = None
    raw: bytes = b""


class Tree(pydantic.BaseModel):
    name: str
    children: list[Tree] = pydantic.Field([])


EVERYDAY = {"count": 4, "colour": "red", "where": {"lat": 1.5, "kind": "place"}, "day": "2026-01-02", "pair": [1, "a"]}
SCHEMAS: list[tuple[Json, Json, Json | None]] = [
    (Everyday.model_json_schema(), EVERYDAY, EVERYDAY | {"colour": "green"}),
    (Tree.model_json_schema(), {"name": "a", "children": [{"name": "b"}]}, {"name": "a", "children": [5]}),
    (pydantic.TypeAdapter(Place | Road).json_schema(), {"lat": 1.5}, None),
    ({"$ref": "#/$defs/A", "$defs": {"A": OBJECT}}, {"x": 3}, {"x": "a"}),
    ({"$ref": "#/definitions/A", "definitions": {"A": {"$ref": "#/definitions/B"}, "B": OBJECT}}, {"x": 3}, {"y": 3}),
    ({"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"y": X["x"]}}], "$defs": {"A": OBJECT}}, {"x": 3, "y": 1}, {"x": 3, "z": 1}),
    ({"type": "object", "allOf": [OBJECT]}, {"x": 3}, {"x": 3, "z": 1}),
    ({"anyOf": [OBJECT, {"type": "object", "properties": {"y": {}}, "required": ["y"]}]}, {"x": 3}, None),
    ({"type": "object", "oneOf": [OBJECT, {"$ref": "#/$defs/A"}], "$defs": {"A": OBJECT}}, {"x": 3}, None),
    ({"type": "object", "properties": {"x": True, "y": False}}, {"x": 3}, {"y": 3}),
    ({"type": ["object"], "properties": X}, {"x": 3}, {"x": []}),
    ({"properties": {"x": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}, {"x": 3}, {"x": "a"}),
    ({"properties": {"x": {"type": "string", "format": "int32"}}}, {"x": "3"}, {"y": "3"}),
    ({"properties": {"x": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}}}, {"x": [1, 2]}, {"x": ["a"]}),
    ({"properties": {"x": {"type": "integer", "not": {"const": 3}}}}, {"x": 4}, {"x": "a"}),
    (
        {  # zod 4: z.record, z.int, z.iso.datetime, z.union and z.never
            "$schema": DRAFT,
            "type": "object",
            "properties": {
                "map": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
                "n": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
                "url": {"type": "string", "format": "uri"},
                "none": {"not": {}},
            },
            "required": ["map", "n"],
            "additionalProperties": False,
        },
        {"map": {"a": 1.5}, "n": 3},
        {"map": {"a": "b"}, "n": 3},
    ),
]  # fmt: skip


def made(tokenizer: TextTokenizer, tools: list[Tool], form: CallForm) -> str:
    return grammar_of_calls(tools, form, tokenizer.split_at_control_tokens, required=True, parallel=False)


def takes(rules: Rules, tokenizer: TextTokenizer, grammar: str, text: str) -> bool:
    ids = tokenizer.encode(text, add_special_tokens=False)
    constraint = rules.compiled("tools", grammar)
    return constraint.matcher.try_consume_tokens(ids) == len(ids) and constraint.is_satisfied


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_a_call_of_a_tool_fits_whichever_way_its_schema_is_written(
    number: int, form: str, rules: Rules, tokenizer: TextTokenizer
) -> None:
    schema, good, bad = SCHEMAS[number]
    tools = read_tools([{"type": "function", "function": {"name": "f", "parameters": json.loads(json.dumps(schema))}}])
    if form == "tags" and {} in tools[0].schema["properties"].values():
        pytest.skip("a tag of any type is read as a text")
    assert expressible(tools[0], rules) == tools[0]
    grammar = made(tokenizer, tools, FORMS[form])
    text = FORMS[form].write([("f", good)])
    assert takes(rules, tokenizer, grammar, text)
    assert bad is None or not takes(rules, tokenizer, grammar, FORMS[form].write([("f", bad)]))
    reader = AnswerReader(read_response_template(response_template_of(AnswerForm("<a>", calls=FORMS[form]))), tools=tools)
    reader.push(text)
    reader.flush()
    assert [call.arguments for call in reader.calls] == [good]


ODD = Tool("odd", parameters={"properties": {"a": {"type": "string", "pattern": "(?=b)"}, **X}, "required": ["a", "x"]})
HOPELESS = Tool("hopeless", parameters={"anyOf": [{"properties": {"a": {"pattern": "("}}}]})


def test_an_odd_tool_is_held_to_what_a_grammar_can_express_with_one_warning(
    rules: Rules, tokenizer: TextTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        tools = [expressible(tool, rules) for tool in (ODD, HOPELESS, Tool("f", parameters=OBJECT))]
    assert [record.getMessage() for record in caplog.records] == [
        "no grammar can express a of the tool odd: any value is taken",
        "no grammar can express the parameters of the tool hopeless: any value is taken",
    ]
    grammar = made(tokenizer, tools, PROMPTED)
    for name, arguments, fits in (
        ("odd", {"a": "c", "x": 3}, True),
        ("odd", {"a": "c", "x": "d"}, False),
        ("hopeless", {"anything": [1]}, True),
        ("f", {"x": 3}, True),
        ("f", {"x": "a"}, False),
    ):
        assert takes(rules, tokenizer, grammar, PROMPTED.write([(name, arguments)])) is fits, (name, arguments)


def test_a_strict_tool_whose_schema_no_grammar_holds_whole_is_refused(rules: Rules, tokenizer: TextTokenizer) -> None:
    tool = Tool("f", parameters={"properties": {"x": {"type": "array", "uniqueItems": True}}}, strict=True)
    with pytest.raises(OptionError, match="uniqueItems"):
        rules.compiled("tools", made(tokenizer, [tool], PROMPTED))
