"""Answers that no model should write: values that are no JSON, calls without an end, and calls that a client wrote itself."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from onnx_textgen.answers.answer_reader import AnswerReader
from onnx_textgen.answers.plain_json import read_json
from onnx_textgen.answers.response_template import ResponseTemplate, read_response_template
from onnx_textgen.answers.tools import Tool
from onnx_textgen.derivation.answer_form import PROMPTED, AnswerForm, CallForm, ReasoningForm
from onnx_textgen.derivation.form_templates import response_template_of
from support.examples import examples

from .law import HARMLESS, Violation, count
from .values import ODD_JSON

KINDS = {key: {"type": key} for key in ("string", "integer", "number", "boolean", "null", "array", "object")}
TOOLS = [Tool("f", parameters={"properties": KINDS}), Tool("g")]
TAGS = CallForm(
    "tags", open="<call>", middle=">\n", close="</call>", tag_open="<p=", tag_middle=">", tag_close="</p>\n", between="\n"
)
FORMS = (
    PROMPTED,
    TAGS,
    CallForm("named", open="<call>", middle="\n", close="</call>"),
    CallForm("python", begin="<call>", end="</call>"),
)
LOOSE = {
    "open": "<call>",
    "close": "</call>",
    "content": "json",
    "content_args": {"string_delims": [["<|", "|>"]], "unquoted_keys": True},
    "repeats": True,
    "transform": {"type": "function", "function": {"name": "{content.name}", "arguments": "{content.arguments}"}},
}
THINKING = ReasoningForm("<think>\n", "\n</think>\n\n")
TEMPLATES = [read_response_template(response_template_of(AnswerForm("<assistant>", THINKING, form))) for form in FORMS]
TEMPLATES.append(
    read_response_template({"start_anchor": "<assistant>", "fields": {"content": {"content": "text"}, "tool_calls": LOOSE}})
)
DEEP = "[" * 300 + "]" * 300
VALUES = (
    *("\x010\x02", '"\\ud83d"', '"\ud83d"', DEEP, "0x" + "f" * 4_500, "{(1, 2): 2}", "{b'x': 1}", "{1: 2}", "b'x'", "1j", "..."),
    *("<|\x010\x02|>", "<|a", '"a\\', "'", "{'\\ud83d': 1}", "True", "1_0", "\u0663"),
    *(value for value in ODD_JSON if len(value) < 10_000),
)
FRAMES = (
    *(
        '<tool_call>\n{"name": "f", "arguments": {"number": %s}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": %s}</tool_call>',
    ),
    *('<tool_call>{"name": %s, "arguments": {}}</tool_call>', "<tool_call>%s", '<call>{name: "f", arguments: {x: %s}}</call>'),
    *('<call>{"name": "f", "arguments": {"x": %s}}</call>', "<call>f>\n<p=number>%s</p>\n<p=object>%s</p>\n</call>"),
    *("<call>[f(x=%s)]</call>", '<call>f\n{"x": %s}</call>', '<call>[{"name": %s}]</call>', "<call>%s</call>", "[f(x=%s)]"),
    *("<think>%s</think>", "%s"),
)
written = st.builds(
    lambda frame, value: frame.replace("%s", value), st.sampled_from(FRAMES), st.sampled_from(VALUES) | st.text(max_size=9)
)
texts = st.lists(written, min_size=1, max_size=3).map("".join)


def read(template: ResponseTemplate, prefix: str, pieces: list[str], *, grows: bool) -> tuple[str, str, list[Any]]:
    """What a reader makes of a text; raises `Violation` where its stream says something else, or no JSON."""
    reader = AnswerReader(template, prefix=prefix, tools=TOOLS, grows=grows)
    deltas, calls = [*map(reader.push, pieces), reader.flush()], dict[int, tuple[str | None, str]]()
    for part in (part for delta in deltas for part in delta.tool_calls):
        name, arguments = calls.get(part.index, (part.name, ""))
        calls[part.index] = name, arguments + part.arguments
    whole = [(call.name, call.arguments_json) for call in reader.calls]
    if list(calls.values()) != whole or "".join(delta.text for delta in deltas) != reader.text:
        raise Violation(f"the stream has {calls!r:.300}, the answer {whole!r:.300}")
    for call in reader.calls:
        json.dumps(call.arguments, ensure_ascii=False, allow_nan=False).encode()
        if not call.is_cut and read_json(call.arguments_json) != call.arguments:
            raise Violation(f"{call.arguments_json!r:.300} is not {call.arguments!r:.300}")
    return reader.text, reader.reasoning, whole


@examples(300)
@given(st.sampled_from(TEMPLATES), texts, st.lists(st.integers(0, 2**16), max_size=4), st.booleans())
@example(TEMPLATES[1], "<call>f>\n<p=number>1e999</p>\n</call>", [], True)
def test_an_answer_of_any_text_is_read_as_text_thinking_and_json_whole_and_streamed(
    template: ResponseTemplate, text: str, cuts: list[int], grows: bool
) -> None:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[begin:end] for begin, end in itertools.pairwise(places)]
    found = read(template, "", [text], grows=grows)
    if read(template, "", pieces, grows=grows) != found:
        raise Violation("in pieces it is another answer")
    if read(template, text, [], grows=grows)[2]:
        raise Violation("a call that was in the prompt is the model's own")
    if len(pieces) > 1 and read(template, pieces[0], pieces[1:], grows=grows) != read(
        template, pieces[0], ["".join(pieces[1:])], grows=grows
    ):
        raise Violation("after the beginning of an answer it is another one in pieces")
    count(HARMLESS)
