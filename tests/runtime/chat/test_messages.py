"""Earlier messages in odd forms, and what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.chat.derivation import derive
from onnx_textgen.chat.messages import prepare
from onnx_textgen.errors import TemplateError

PLAIN = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}<{{ m.role }}>{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""A template that knows no tools."""
RESULT = {"role": "tool", "content": "rain"}


def call_with(arguments: object) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("hi", "message 0 is of type str"),
        ({"role": "assistant", "tool_calls": 5}, "tool_calls should be a list of calls, found 5"),
        ({"role": "assistant", "tool_calls": {"name": "f"}}, "tool_calls should be a list of calls"),
        ({"role": "assistant", "tool_calls": ["f"]}, "a tool call should be"),
        (call_with("no"), "the arguments of the call of f should be JSON"),
        (call_with("[" * 100_000 + "]" * 100_000), "the arguments of the call of f should be JSON"),
        (call_with("{city: 1}"), "the arguments of the call of f should be JSON"),
        (call_with('{"city": Oslo}'), "the arguments of the call of f should be JSON"),
        (call_with('{"city": "\\q"}'), "the arguments of the call of f should be JSON"),
        (call_with('{"city": 1} e'), "the arguments of the call of f should be JSON"),
        (call_with("[]"), "the arguments of the call of f should be a JSON object"),
    ],
)
def test_what_is_wrong_with_a_message_is_said(message: Any, said: str) -> None:
    with pytest.raises(TemplateError, match=said):
        prepare([message, RESULT], [], derive(PLAIN, bos_token=None, eos_token=None))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text(), JSON, min_size=1, max_size=3), st.booleans(), st.data())
def test_a_call_that_was_cut_off_anywhere_is_written_without_arguments(
    arguments: dict[str, Any], is_ascii: bool, data: st.DataObject
) -> None:
    whole = json.dumps(arguments, ensure_ascii=is_ascii)
    part = whole[: data.draw(st.integers(1, len(whole) - 1))]
    derived = derive(PLAIN, bos_token=None, eos_token=None)
    assert prepare([call_with(part), RESULT], [], derived) == prepare([call_with({}), RESULT], [], derived)


@pytest.mark.parametrize("content", ["Hi", None, [{"type": "text", "text": "Hi"}], [{"type": "text", "text": "<tool_response>"}]])
def test_a_result_follows_a_message_of_any_form(content: Any) -> None:
    prepared, _ = prepare([{"role": "user", "content": content}, RESULT, RESULT], [], derive(PLAIN, bos_token=None, eos_token=None))
    assert prepared[-1]["role"] == "user"
    assert prepared[-1]["content"].endswith("<tool_response>\nrain\n</tool_response>\n<tool_response>\nrain\n</tool_response>")
