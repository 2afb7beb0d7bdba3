"""Orders of messages that APIs allow, for templates that refuse them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.chat.fitting import fitted
from onnx_textgen.chat.messages import prepare
from onnx_textgen.chat.parts import readable
from onnx_textgen.derivation.derive import Derived, derive
from onnx_textgen.errors import TemplateError
from onnx_textgen.text.chat_template import render_chat
from onnx_textgen.text.refused import RefusedError
from support.orders_of_messages import HISTORIES, ORDERS, PICKY, REFUSE, ROLES, UNREAD, WRITE, Messages, messages_of


def shown(template: str, messages: Messages) -> str:
    write = functools.partial(render_chat, template, bos_token="<s>", eos_token="</s>")
    return fitted(write, prepare(readable(messages), [], found_in(template))[0])


@functools.cache
def found_in(template: str) -> Derived:
    return derive(template, bos_token="<s>", eos_token="</s>")


def plainly(messages: Messages, *, tools: object = None) -> str:
    return "".join(f"<{each['role']}>{each['content']}" for each in messages)


def fitted_for(asked: str, roles: Sequence[str]) -> str:
    """What a template writes that takes what is asked for alone."""

    def write(messages: Messages, /, *, tools: object) -> str:
        if not PICKY[asked][0](messages):
            raise RefusedError(asked)
        return plainly(messages)

    return fitted(write, readable(messages_of(roles)))


@pytest.mark.parametrize("asked", PICKY)
def test_every_order_of_roles_is_written_with_all_that_was_said(asked: str) -> None:
    for roles in ORDERS:
        text = fitted_for(asked, roles)
        places = [text.index(f"said {number}") for number in range(len(roles))]
        assert places == sorted(places) or "system" in roles or "developer" in roles, roles


@given(st.lists(st.sampled_from(ROLES), min_size=1, max_size=12))
def test_messages_that_a_template_takes_are_not_changed(roles: list[str]) -> None:
    messages = readable(messages_of(roles))
    assert fitted(plainly, messages) == plainly(messages)


@pytest.mark.parametrize(
    ("asked", "roles", "text"),
    [
        (  # at the beginning it would change every prompt, and nothing would come from the cache
            "a system message only at the beginning",
            ["system", "system", "user", "assistant", "system"],
            "<system>said 0\n\nsaid 1<user>said 2<assistant>said 3<user>said 4",
        ),
        (
            "turns alone",
            ["system", "user", "assistant", "user", "user"],
            "<user>said 0\n\nsaid 1<assistant>said 2<user>said 3\n\nsaid 4",
        ),
        ("turns after a system message", ["assistant", "user"], "<user><assistant>said 0<user>said 1"),
        ("a question", ["system"], "<user>said 0"),
    ],
)
def test_messages_change_as_little_as_a_template_allows(asked: str, roles: list[str], text: str) -> None:
    assert fitted_for(asked, roles) == text


def test_a_system_message_that_a_template_leaves_out_is_given_elsewhere() -> None:
    """As those of DeepSeek R1 (the last one alone is written) and SmolLM3 (the first one alone)."""
    last = "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.s = m.content %}{% endif %}"
    last += "{% endfor %}{{ ns.s }}{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert shown(last, messages_of(["system", "system", "user"])) == "said 0\n\nsaid 1<user>said 2"
    never = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert shown(never, messages_of(["system", "user"])) == "<user>said 0\n\nsaid 1"
    other_words = "{% for m in messages %}<{{ m.role }}>{{ m.content | replace('/no_think', '') }}{% endfor %}"
    changed = [{"role": "system", "content": "Be brief. /no_think"}, {"role": "user", "content": "Hi"}]
    assert shown(other_words, changed) == "<system>Be brief. <user>Hi"


def test_a_template_that_refuses_every_order_is_quoted() -> None:
    with pytest.raises(RefusedError, match="refused the messages: refused"):
        shown(REFUSE, messages_of(ROLES))


def test_a_template_that_is_stopped_is_tried_once() -> None:
    tried = list[object]()

    def write(messages: Messages, /, *, tools: object) -> str:
        tried.append(messages)
        raise TemplateError("the chat template was stopped")

    with pytest.raises(TemplateError, match="stopped"):
        fitted(write, messages_of(ROLES))
    assert len(tried) == 1


def test_a_template_that_needs_a_list_of_tools_gets_an_empty_one() -> None:
    assert shown("{% for t in tools %}{{ t }}{% endfor %}" + WRITE, messages_of(["user"])) == "<user>said 0<assistant>"


def real_templates(shared: Path) -> dict[str, str]:
    paths = [*(shared / "chat_templates").rglob("*.jinja")]
    found = {str(path.relative_to(shared)): path.read_text(encoding="utf-8") for path in paths}
    assert len(found) > 6
    return found


def test_every_real_template_writes_every_order_of_roles(shared: Path) -> None:
    for name, template in real_templates(shared).items():
        write = functools.partial(render_chat, template, bos_token="<s>", eos_token="</s>")
        for roles in (["system"], ["assistant", "user"], ["system", "system", "user", "user"], ["user", "assistant", "system"]):
            text = fitted(write, readable(messages_of(roles)))
            assert all(f"said {number}" in text for number in range(len(roles))), (name, roles)


@pytest.mark.parametrize("name", ["google-gemma-2-2b-it", "meta-llama-Llama-3.1-8B-Instruct"])
def test_a_real_template_writes_every_history(shared: Path, name: str) -> None:
    template = (shared / "chat_templates" / "llama.cpp" / f"{name}.jinja").read_text(encoding="utf-8")
    for kind, history in HISTORIES.items():
        text = shown(template, history)
        assert "said 0" in text, kind
        assert "None" not in text.partition("said 0")[2], kind
        assert "'type'" not in text, kind


@pytest.mark.parametrize("part", UNREAD)
def test_a_part_that_is_no_text_is_named_unless_it_is_what_the_user_asks_about(part: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    asked = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]}
    answer = {"role": "assistant", "content": "A dog."}
    earlier = [asked, answer, {"role": "user", "content": "Sure?"}]
    text = shown(WRITE, earlier)
    assert f"What is it?[{part['type']} left out]<assistant>A dog." in text
    assert len(caplog.records) == 1
    result = {"role": "tool", "content": [part, {"type": "text", "text": "said 0"}]}
    assert f"[{part['type']} left out" in shown(WRITE, [*earlier[:2], result])
    for last in ([asked], [*earlier, asked], [asked, {"role": "user", "content": "Now?"}]):
        with pytest.raises(
            TemplateError, match=f"the models here read text, found a part of the type '{part['type']}'; leave it out"
        ):
            shown(WRITE, last)


def test_parts_of_an_answer_that_comes_back_are_read() -> None:
    parts = [
        {"type": "output_text", "text": "Yes.", "annotations": []},
        {"type": "refusal", "refusal": "No."},
        {"type": "reasoning"},
    ]
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": parts}, {"role": "user", "content": "?"}]
    assert shown(WRITE, messages) == "<user>?<assistant>Yes.No.<user>?<assistant>"


def test_parts_reach_a_template_that_reads_them() -> None:
    template = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    template += "({{ p.text }}){% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    assert shown(template, HISTORIES["parts"]) == "<user>(said 0)(said 1)<assistant>"


def test_a_function_call_of_openais_older_form_is_a_call_with_its_result() -> None:
    called, role = {"name": "f", "arguments": "{}"}, {"role": "assistant", "content": None}
    chat = [{**role, "function_call": called}, {"role": "function", "name": "f", "content": "1"}, {**role, "function_call": None}]
    call, result, answer = readable(chat)
    assert (call["tool_calls"][0]["function"], "function_call" in call, call["content"]) == (called, False, "")
    assert (result["role"], result["tool_call_id"]) == ("tool", call["tool_calls"][0]["id"])
    assert answer == {"role": "assistant", "content": ""}
