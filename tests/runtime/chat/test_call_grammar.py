"""Whatever a model prefers, a call under the grammar can be read, names a tool and fits its schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.answers.answer_reader import AnswerReader
from onnx_textgen.answers.response_template import read_response_template
from onnx_textgen.answers.tools import Tool
from onnx_textgen.chat.call_grammar import grammar_of_calls
from onnx_textgen.derivation.answer_form import PROMPTED, AnswerForm, CallForm, TextForm
from onnx_textgen.derivation.form_templates import response_template_of
from onnx_textgen.errors import OptionError
from onnx_textgen.sampling.grammar import Rules
from onnx_textgen.text.tokenizer import TextTokenizer
from support.examples import examples
from support.random_calls import random_text

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")

TOOLS = [
    Tool(
        "book",
        parameters={
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "guests": {"type": "integer", "minimum": 1, "maximum": 9},
                "class": {"enum": ["low", "high"]},
                "extras": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
            },
            "required": ["guests", "name"],
        },
    ),
    Tool("stop"),
]
FORMS = {
    "object": PROMPTED,
    "object alone": CallForm("object", arguments_keys=("parameters",)),
    "list": CallForm("list", begin="[CALLS] "),
    "named": CallForm("named", begin="<calls>", open="<call>", middle="\n", close="</call>", between="\n", end="</calls>"),
    "tags": CallForm(
        "tags", open="<call=", middle=">\n", close="</call>", between="\n", tag_open="<p=", tag_middle=">\n", tag_close="\n</p>\n"
    ),
    "tags that tell texts": CallForm(
        "tags",
        "<c>",
        open="<i=",
        middle=">",
        close="</i>",
        end="</c>",
        tag_open="<p=",
        tag_middle=" s=1>",
        tag_middle_json=" s=0>",
        tag_close="</p>",
    ),
    "a number": CallForm("named", "<calls>", open="<call>functions.", middle=":{number}<args>", close="</call>", end="</calls>"),
    "an id": CallForm("named", open="<call>abcdef123<name>", middle="<args>", close="</call>"),
    "a list with numbers": CallForm("list", begin="[CALLS]", before={"at": "{number}"}, name_keys=("tool",)),
    "other quotes": CallForm("named", open="<call>call:", close="</call>", quotes=("<q>", "</q>")),
    "a header": CallForm("named", open=" to=functions.", middle="<c>json<m>", close="<e>", header=("<c>", "<m>"), several=False),
    "python": CallForm("python"),
    "python between marks": CallForm("python", begin="<py>", end="</py>"),
}


def written(rules: Rules, tokenizer: TextTokenizer, grammar: str, seed: int) -> tuple[str, bool]:
    """A random text under a grammar, and whether it is complete."""
    return random_text(rules, tokenizer, grammar, seed, ends=('"', "}", "]", "\n</p>", "<"))


def grammar(tokenizer: TextTokenizer, form: CallForm, **how: Any) -> str:
    return grammar_of_calls(TOOLS, form, tokenizer.split_at_control_tokens, **{"required": True, "parallel": True} | how)


def read(form: CallForm, text: str, *, grows: bool, size: int = 2) -> tuple[AnswerReader, list[str]]:
    reader = AnswerReader(read_response_template(response_template_of(AnswerForm("<a>", calls=form))), tools=TOOLS, grows=grows)
    parts: dict[int, str] = {}
    for delta in [*(reader.push(text[i : i + size]) for i in range(0, len(text), size)), reader.flush()]:
        for part in delta.tool_calls:
            assert (part.id is not None) == (part.index not in parts), "the first part of a call has its id and name"
            parts[part.index] = parts.get(part.index, "") + part.arguments
    return reader, [parts[index] for index in sorted(parts)]


@pytest.mark.parametrize("name", FORMS)
@examples(25)
@given(seed=st.integers(0, 2**32))
def test_a_required_call_can_be_read_and_fits_its_schema(name: str, seed: int, rules: Rules, tokenizer: TextTokenizer) -> None:
    text, complete = written(rules, tokenizer, grammar(tokenizer, FORMS[name]), seed)
    if not complete:
        return
    schemas = {tool.name: tool.schema for tool in TOOLS}
    for grows in (True, False):
        reader, streamed = read(FORMS[name], text, grows=grows)
        assert reader.calls, text
        assert reader.text == ""
        for call, parts in zip(reader.calls, streamed, strict=True):
            jsonschema.validate(call.arguments, schemas[call.name])
            assert parts == call.arguments_json
            assert json.loads(parts) == call.arguments


@pytest.mark.parametrize("name", FORMS)
def test_some_random_texts_are_complete(name: str, rules: Rules, tokenizer: TextTokenizer) -> None:
    form = grammar(tokenizer, FORMS[name])
    assert any(written(rules, tokenizer, form, seed)[1] for seed in range(20)), "otherwise the test before would show nothing"


def accepted(rules: Rules, tokenizer: TextTokenizer, grammar: str, text: str) -> bool:
    """Whether the grammar allows a text up to its end."""
    constraint = rules.compiled("tools", grammar)
    ids = tokenizer.encode(text, add_special_tokens=False)
    return constraint.matcher.try_consume_tokens(ids) == len(ids) and constraint.is_satisfied


CALLS = [
    ("book", {"name": 'Zoé "Z"', "guests": 2}),
    ("stop", {}),
    ("book", {"name": "x", "guests": 3, "class": "low", "extras": [True]}),
]


@pytest.mark.parametrize("name", FORMS)
def test_the_grammar_allows_what_the_template_writes_and_nothing_else(name: str, rules: Rules, tokenizer: TextTokenizer) -> None:
    form = FORMS[name]
    required, free = (grammar(tokenizer, form, required=required) for required in (True, False))
    one = grammar(tokenizer, form, parallel=False)
    wrong = form.write([("book", {"name": "x", "guests": 20})])
    unknown = form.write([("look", {})])
    for call in CALLS:
        if form.kind != "python" or "extras" not in call[1]:  # constants are JSON's, and `write` has Python's
            assert accepted(rules, tokenizer, required, form.write([call]))
            assert accepted(rules, tokenizer, free, form.write([call]))
    for bad in (wrong, unknown, "It rains."):
        assert not accepted(rules, tokenizer, required, bad)
    assert accepted(rules, tokenizer, free, "It rains.")
    assert not accepted(rules, tokenizer, free, wrong)
    if name not in ("object alone", "python"):
        assert accepted(rules, tokenizer, free, "I look.\n" + form.write(CALLS[:1]))
        assert not accepted(rules, tokenizer, free, "I look.\n" + unknown)
    if name != "object alone" and form.several:
        assert accepted(rules, tokenizer, required, form.write(CALLS[:2]))
    assert not accepted(rules, tokenizer, one, form.write(CALLS[:2]))


@pytest.mark.parametrize("name", FORMS)
def test_the_marks_of_calls_may_stand_in_an_argument(name: str) -> None:
    """Under a grammar: without one, a call that ends too early is told from one that goes on by nothing."""
    form = FORMS[name]
    for mark in {each.strip() for each in (form.begin, form.open, form.close, form.between, form.end)} - {""}:
        calls = [("book", {"name": f"a {mark} b {mark}", "guests": 2}), ("stop", {})][: 2 if form.several else 1]
        reader, _ = read(form, form.write(calls), grows=True)
        assert [(call.name, call.arguments) for call in reader.calls] == calls
        assert reader.text == ""


def test_an_answer_may_follow_a_schema_instead_of_calling(rules: Rules, tokenizer: TextTokenizer) -> None:
    both = grammar(
        tokenizer, PROMPTED, required=False, schema={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    )
    assert accepted(rules, tokenizer, both, '{"a": 5}')
    assert accepted(rules, tokenizer, both, PROMPTED.write(CALLS[:1]))
    assert not accepted(rules, tokenizer, both, "It rains.")


HEADER = FORMS["a header"]


def test_a_name_in_a_header_may_follow_a_part_of_the_header(rules: Rules, tokenizer: TextTokenizer) -> None:
    free = grammar(tokenizer, HEADER, required=False)
    for answer in ("<c>commentary to=functions.stop<m>{}<e>", "to=functions.stop<c>json<m>{}<e>", "<c>final<m>It rains."):
        assert accepted(rules, tokenizer, free, answer)
    assert not accepted(rules, tokenizer, free, "<c>commentary to=functions.look<m>{}<e>")


def test_a_schema_that_says_more_than_types_cannot_be_required_in_other_quotes(tokenizer: TextTokenizer) -> None:
    tools = [Tool("find", parameters={"properties": {"what": {"anyOf": [{"type": "string"}, {"type": "null"}]}}})]
    with pytest.raises(OptionError, match="the tool find"):
        grammar_of_calls(tools, FORMS["other quotes"], tokenizer.split_at_control_tokens, required=True, parallel=False)


def test_nested_arguments_in_other_quotes_fit_their_schema(rules: Rules, tokenizer: TextTokenizer) -> None:
    step = {"type": "object", "properties": {"do": {"type": "string"}, "times": {"type": "integer"}}, "required": ["do"]}
    tools = [Tool("plan", parameters={"properties": {"steps": {"type": "array", "items": step, "minItems": 1, "maxItems": 2}}})]
    form = FORMS["other quotes"]
    made = grammar_of_calls(tools, form, tokenizer.split_at_control_tokens, required=True, parallel=False)
    for steps, fits in (
        ([{"do": 'a "b", {c: 1}'}], True),
        ([{"do": "a", "times": 3}, {"do": "b"}], True),
        ([], False),
        ([{"do": "a"}] * 3, False),
        ([{"times": 3}], False),
        ([{"do": "a", "more": 1}], False),
    ):
        assert accepted(rules, tokenizer, made, form.write([("plan", {"steps": steps})])) is fits, steps


def test_a_token_that_ends_the_answer_is_no_part_of_the_grammar() -> None:
    """gpt-oss ends an answer with `<|call|>`: a constraint allows such a token when the grammar has ended, and not within it."""

    def split(text: str) -> list[tuple[str, int | None]]:
        before, mark, after = text.partition("<|call|>")
        return [(piece, number) for piece, number in ((before, None), (mark, 7), (after, None)) if piece]

    form = CallForm("named", open="<call>", middle=" ", close="</call><|call|>", end="</calls>")
    made = grammar_of_calls([Tool("stop")], form, split, required=True, parallel=False, eos_ids=[7])
    assert "<[7]>" not in made
    assert "</calls>" not in made
    assert "<[7]>" in grammar_of_calls([Tool("stop")], form, split, required=True, parallel=False)


def test_a_schema_beside_calls_holds_after_the_marks_of_the_text(rules: Rules, tokenizer: TextTokenizer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    made = grammar(tokenizer, PROMPTED, required=False, schema=schema, text=TextForm("<text>", "</text>"))
    assert accepted(rules, tokenizer, made, '<text>{"a": 5}')
    assert not accepted(rules, tokenizer, made, '{"a": 5}')
