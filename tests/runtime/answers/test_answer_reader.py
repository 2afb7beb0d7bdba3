"""An answer is divided the same way, however it arrives, and in time that grows with its length."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.answers import answer_reader
from onnx_textgen.answers.answer_reader import AnswerReader
from onnx_textgen.answers.contents import tags_in
from onnx_textgen.answers.records import AnswerDelta
from onnx_textgen.answers.response_template import read_response_template
from onnx_textgen.answers.tools import Tool
from onnx_textgen.derivation.answer_form import PROMPTED, AnswerForm, CallForm, ReasoningForm
from onnx_textgen.derivation.form_templates import response_template_of

THINKING = ReasoningForm("<think>\n", "\n</think>\n\n")
CALL, STOP = '<tool_call>\n{"name": "write", "arguments": {"text": "a \\n"}}\n</tool_call>', "<tool_call>{}</tool_call>"
PIECES = ["Hi", " ", "\n", "\n\n", "<think>", "</think>", "<think>\nHm.\n</think>", CALL, STOP, "<tool_call>", "</tool_call>", "<"]
TAGS = CallForm(
    "tags",
    open="<tool_call>\n<function=",
    middle=">\n",
    close="</function>\n</tool_call>",
    between="\n",
    tag_open="<parameter=",
    tag_middle=">\n",
    tag_close="\n</parameter>\n",
)
WRITE = Tool("write", parameters={"properties": {"text": {"type": "string"}, "more": {"type": "array"}}})


def reader_of(form: CallForm, *, grows: bool = False) -> AnswerReader:
    template = read_response_template(response_template_of(AnswerForm("<assistant>", THINKING, form)))
    return AnswerReader(template, tools=[WRITE], grows=grows)


def in_pieces(text: str, cuts: list[int]) -> Iterator[str]:
    places = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    yield from (text[begin:end] for begin, end in itertools.pairwise(places))


def read(text: str, cuts: list[int]) -> tuple[str, str, list[Any]]:
    reader = reader_of(PROMPTED)
    deltas = [*map(reader.push, in_pieces(text, cuts)), reader.flush()]
    assert "".join(delta.text for delta in deltas) == reader.text
    assert "".join(delta.reasoning for delta in deltas) == reader.reasoning
    return reader.text, reader.reasoning, [(call.name, call.arguments) for call in reader.calls]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.lists(st.integers(0, 400), max_size=12))
def test_an_answer_in_pieces_is_divided_as_the_whole_answer(text: str, cuts: list[int]) -> None:
    assert read(text, cuts) == read(text, [])


def test_white_space_after_a_call_counts_if_text_follows_in_another_piece() -> None:
    text = f"I look.{CALL} \nDone."
    assert read(text, [])[0] == read(text, list(range(len(text))))[0] == "I look. \nDone."


def test_thinking_in_two_parts_is_two_lines() -> None:
    assert read("<think>One.</think>So. <think>Two.</think>", [])[:2] == ("So.", "One.\nTwo.")


def test_arguments_in_tags_grow_while_they_are_written_and_are_not_read_again_with_each_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = 0

    def counting(text: str, args: Any, start: int = 0) -> Iterator[tuple[str, Any, int]]:
        nonlocal searched
        searched += len(text) - start
        yield from tags_in(text, args, start)

    monkeypatch.setattr(answer_reader, "tags_in", counting)
    value = "word " * 10_000
    text, reader = TAGS.write([("write", {"text": value, "more": "x"})]), reader_of(TAGS, grows=True)
    deltas = [*(reader.push(text[place : place + 5]) for place in range(0, len(text), 5)), reader.flush()]
    written = [part.arguments for delta in deltas for part in delta.tool_calls]
    assert "".join(written) == reader.calls[0].arguments_json == json.dumps({"text": value, "more": "x"})
    assert len(written) >= 2, "the name comes first"
    assert searched < 50 * len(text), "linear: with each token it would be 5,000 times its length"


NAMED = CallForm("named", open="<call>", middle="\n", close="</call>")
LIST = CallForm("list", begin="[CALLS]", end="[END]", name_keys=("name",))
PYTHON = CallForm("python", begin="<calls>", end="</calls>")
TWO = [("write", {"text": 'a "b" <c> {d} \n ', "more": [1, {"e": "}"}]}), ("write", {"text": "fin"})]


def joined_calls(deltas: Iterable[AnswerDelta]) -> dict[int, tuple[str | None, str | None, str]]:
    """The calls that a stream's deltas make: id, name and arguments of each."""
    calls = dict[int, tuple[str | None, str | None, str]]()
    for part in (part for delta in deltas for part in delta.tool_calls):
        call_id, name, arguments = calls.get(part.index, (part.id, part.name, ""))
        calls[part.index] = (call_id, name, arguments + part.arguments)
    return calls


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("form", [PROMPTED, TAGS, NAMED, LIST, PYTHON], ids=["object", "tags", "named", "list", "python"])
def test_a_stream_that_is_cut_anywhere_has_what_the_whole_answer_has(form: CallForm, grows: bool) -> None:
    text, cut = f"I look.\n{form.write(TWO)}", 0
    for end in range(len(text) + 1):
        whole = reader_of(form, grows=grows)
        at_once = [whole.push(text[:end]), whole.flush()]
        for step in (1, 7):
            reader = reader_of(form, grows=grows)
            deltas = [*(reader.push(text[place : min(end, place + step)]) for place in range(0, end, step)), reader.flush()]
            assert "".join(delta.text for delta in deltas) == reader.text == whole.text
            calls = [(call.id, call.name, call.arguments_json) for call in reader.calls]
            assert joined_calls(deltas) == dict(enumerate(calls))
            assert [call[1:] for call in calls] == [(call.name, call.arguments_json) for call in whole.calls]
        assert list(joined_calls(at_once)) == list(range(len(whole.calls)))
        for call, (name, arguments) in zip(whole.calls, TWO, strict=False):
            assert (call.name, call.arguments) == (name, {} if call.is_cut else arguments)
            assert call.is_cut or json.loads(call.arguments_json) == arguments
            assert json.dumps(arguments, ensure_ascii=False).startswith(call.arguments_json)
        assert [call.is_cut for call in whole.calls[:-1]] == [False] * (len(whole.calls) - 1), "only the last is cut"
        assert whole.message().get("tool_calls", []) == [call.as_json() for call in whole.calls if not call.is_cut]
        cut += sum(call.is_cut for call in whole.calls)
    assert len(whole.calls) == 2
    assert (cut > 40) == (grows and form in (PROMPTED, TAGS, NAMED)), "other calls are text until they are whole"


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("arguments", [json.dumps(DEEP), DEEP, f'{{"text": {DEEP}}}', '"no JSON"', "5"])
@pytest.mark.parametrize("close", ["\n</tool_call>", ""])
def test_json_that_is_no_call_stays_in_the_text_with_its_marks(arguments: str, close: str) -> None:
    text = f'<tool_call>\n{{"name": "write", "arguments": {arguments}}}{close}'
    for grows in (False, True):
        reader = reader_of(PROMPTED, grows=grows)
        reader.push(text)
        reader.flush()
        assert (reader.text == text) or (grows and reader.text == ""), "what was reported as a call is not taken back"
        assert [call.is_cut for call in reader.calls] == ([] if reader.text else [True])


def test_an_argument_that_is_nested_too_deeply_stays_a_text() -> None:
    reader = AnswerReader(
        reader_of(TAGS).parser.template, tools=[Tool("write", parameters={"properties": {"text": {"type": "array"}}})]
    )
    reader.push(TAGS.write([("write", {"text": DEEP})]))
    reader.flush()
    assert [call.arguments for call in reader.calls] == [{"text": DEEP}]


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("form", [PROMPTED, TAGS, NAMED, LIST, PYTHON], ids=["object", "tags", "named", "list", "python"])
def test_a_call_that_the_prompt_ends_with_is_not_the_models_own_and_one_that_the_model_ends_is_its_own(
    form: CallForm, grows: bool
) -> None:
    template, text = reader_of(form).parser.template, form.write(TWO[1:])
    reader = AnswerReader(template, prefix=text, tools=[WRITE], grows=grows)
    assert not any(delta.tool_calls for delta in (reader.push(" So."), reader.flush()))
    assert not reader.calls
    reader = AnswerReader(template, prefix=text[:-12], tools=[WRITE], grows=grows)
    deltas = [*map(reader.push, text[-12:]), reader.flush()]
    assert joined_calls(deltas) == {0: (reader.calls[0].id, "write", '{"text": "fin"}')}


@pytest.mark.parametrize("form", [PROMPTED, NAMED, LIST], ids=["object", "named", "list"])
def test_a_call_under_a_grammar_that_is_cut_before_its_arguments_leaves_no_marks_in_the_text(form: CallForm) -> None:
    text = f"I look.\n{form.write(TWO[:1])}"
    for end in range(text.index("write") + 1, len(text)):
        reader = reader_of(form, grows=True)
        reader.push(text[:end])
        reader.flush()
        assert reader.text == "I look."
