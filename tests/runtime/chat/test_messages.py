"""Earlier messages in odd forms, and what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.chat.messages import prepare
from onnx_textgen.derivation.derive import derive
from onnx_textgen.errors import TemplateError

PLAIN = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}<{{ m.role }}>{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""A template that knows no tools."""
TAKES_NO_TOOLS = derive(PLAIN, bos_token=None, eos_token=None)
RESULT = {"role": "tool", "content": "rain"}


def call_with(arguments: object) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "assistant", "tool_calls": 5}, "tool_calls should be a list of calls, found 5"),
        ({"role": "assistant", "tool_calls": {"name": "f"}}, "tool_calls should be a list of calls"),
        ({"role": "assistant", "tool_calls": ["f"]}, "a tool call should be"),
    ],
)
def test_what_is_wrong_with_a_message_is_said(message: Any, said: str) -> None:
    with pytest.raises(TemplateError, match=said):
        prepare([message, RESULT], [], TAKES_NO_TOOLS)


NO_OBJECTS = ["no", "[" * 500 + "]" * 500, "{city: 1}", "{'a': 1}", '{"city": Oslo}', '{"city": "\\q"}', '{"city": 1} e', "[]", "5"]
WRITES = (
    "{{ tools | tojson if tools }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}<call>"
    "{{ c.function.name }}<args>{{ c.function.arguments | tojson }}</call>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize("template", [PLAIN, WRITES])
def test_a_call_whose_arguments_are_no_object_is_the_text_that_it_was(template: str) -> None:
    derived = derive(template, bos_token=None, eos_token=None)
    for arguments in [*NO_OBJECTS, ["a"], 5]:
        (message, _), _ = prepare([call_with(arguments), RESULT], [], derived)
        assert (arguments if isinstance(arguments, str) else json.dumps(arguments)) in message["content"]
        assert "f" in message["content"]
        assert "tool_calls" not in message
    (message, _), _ = prepare(
        [call_with("{'a': 1}") | {"content": "I look."}, RESULT], [], derive(WRITES, bos_token=None, eos_token=None)
    )
    assert message["content"] == "I look.\n<call>f<args>{'a': 1}</call>"


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
    assert prepare([call_with(part), RESULT], [], TAKES_NO_TOOLS) == prepare([call_with({}), RESULT], [], TAKES_NO_TOOLS)


@pytest.mark.parametrize("content", ["Hi", None, [{"type": "text", "text": "Hi"}], [{"type": "text", "text": "<tool_response>"}]])
def test_a_result_follows_a_message_of_any_form(content: Any) -> None:
    prepared, _ = prepare([{"role": "user", "content": content}, RESULT, RESULT], [], TAKES_NO_TOOLS)
    assert prepared[-1]["role"] == "user"
    assert prepared[-1]["content"].endswith("<tool_response>\nrain\n</tool_response>\n<tool_response>\nrain\n</tool_response>")


def test_ids_have_the_names_of_the_calls_where_a_template_writes_no_others() -> None:
    """Kimi K2 was trained on `functions.NAME:NUMBER`, counted over the chat; a client sends the ids that it was given."""
    template = "{{ tools | tojson if tools }}{% for m in messages %}<{{ m.role }}>"
    template += "{% if m.role == 'tool' %}{{ m.tool_call_id }}:{% endif %}{{ m.content }}"
    template += "{% for c in m.tool_calls or [] %}<call>{{ c.id }}<args>{{ c.function.arguments | tojson }}</call>"
    template += "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    derived = derive(template, bos_token=None, eos_token=None)
    assert derived.messages.name_in_id
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call("one1", "look"), call("two2", "stop")]},
        {"role": "tool", "tool_call_id": "two2", "content": "stopped"},
        {"role": "tool", "tool_call_id": "one1", "content": "seen"},
        {"role": "assistant", "content": "", "tool_calls": [call("one1", "look")]},
    ]
    prepared, _ = prepare(messages, [], derived)
    assert [each["id"] for message in prepared for each in message.get("tool_calls", ())] == [
        "functions.look:0",
        "functions.stop:1",
        "functions.look:2",
    ]
    assert [message["tool_call_id"] for message in prepared if message["role"] == "tool"] == [
        "functions.stop:1",
        "functions.look:0",
    ]
    assert messages[1]["tool_calls"][0]["id"] == "one1", "the messages of the caller are as they were"


def call(call_id: str, name: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def test_thinking_is_left_out_where_a_template_refuses_it_beside_text_and_calls() -> None:
    """As gpt-oss's template does."""
    template = (
        "{{ tools | tojson if tools }}{% for m in messages %}<{{ m.role }}>{% if m.thinking %}{% if m.tool_calls and m.content %}"
    )
    template += "{{ raise_exception('one of both') }}{% endif %}<think>{{ m.thinking }}</think>{% endif %}{{ m.content }}"
    template += "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}{% endfor %}"
    template += "{% if add_generation_prompt %}<assistant>{% endif %}"
    derived = derive(template, bos_token=None, eos_token=None)
    for text, kept in (("", True), ("I look.", False)):
        message = {"role": "assistant", "content": text, "reasoning_content": "Hm.", "tool_calls": [call("one1", "look")]}
        (prepared,), _ = prepare([message], [], derived)
        assert ("thinking" in prepared) is kept
        assert prepared["content"] == text


def test_thinking_is_a_part_of_the_content_where_a_template_reads_it_so() -> None:
    """As Ministral 3's does."""
    template = (
        "{{ tools | tojson if tools }}{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    )
    template += (
        "{% for p in m.content %}{% if p.type == 'thinking' %}[THINK]{{ p.thinking }}[/THINK]{% else %}{{ p.text }}{% endif %}"
    )
    template += (
        "{% endfor %}{% endif %}{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}{% endfor %}"
    )
    template += "{% if add_generation_prompt %}<assistant>{% endif %}"
    derived = derive(template, bos_token=None, eos_token=None)
    assert derived.form.reasoning is not None
    assert derived.form.reasoning.marks == ("[THINK]", "[/THINK]")
    thought = {"type": "thinking", "thinking": "Hm."}
    for calls in ({}, {"tool_calls": [call("one1", "look")]}):
        for text, parts in (("I look.", [thought, {"type": "text", "text": "I look."}]), ("", [thought])):
            message = {"role": "assistant", "content": text, "reasoning_content": "Hm.", **calls}
            (prepared,), _ = prepare([message], [], derived)
            assert prepared["content"] == parts
            assert "reasoning_content" not in prepared
        (plain,), _ = prepare([{"role": "assistant", "content": "I look.", **calls}], [], derived)
        assert plain["content"] == "I look."


def test_a_template_that_writes_parts_of_the_content_as_data_shows_no_thinking() -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    for written in (template, template.replace("m.content", "m.content | tojson")):
        assert derive(written, bos_token=None, eos_token=None).form.reasoning is None
