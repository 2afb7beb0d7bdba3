"""An answer is divided the same way, however it arrives, and in time that grows with its length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.chat.answer_form import PROMPTED, AnswerForm, CallForm, ReasoningForm, response_template_of
from onnx_textgen.chat.answer_reader import AnswerReader
from onnx_textgen.chat.response_template import read_response_template
from onnx_textgen.chat.tools import Tool

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
WRITE = Tool("write", parameters={"properties": {"text": {"type": "string"}, "more": {}}})


def reader_of(form: CallForm, *, grows: bool = False) -> AnswerReader:
    template = read_response_template(response_template_of(AnswerForm("<assistant>", THINKING, form)))
    return AnswerReader(template, tools=[WRITE], grows=grows)


def in_pieces(text: str, cuts: list[int]) -> Iterator[str]:
    places = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    yield from (text[begin:end] for begin, end in zip(places[:-1], places[1:], strict=True))


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
