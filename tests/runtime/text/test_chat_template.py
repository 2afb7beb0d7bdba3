"""Chat templates: byte for byte what transformers renders. Hostile ones: tests/attacks/test_templates.py."""

import datetime
import functools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import SecurityError

from onnx_textgen.errors import TemplateError
from onnx_textgen.text.chat_template import render_chat
from onnx_textgen.text.template_budget import Budget
from onnx_textgen.text.template_sandbox import compiled

NOW = datetime.datetime(2024, 7, 26, 12, 0)
HELLO = [{"role": "user", "content": "Hello"}]


def render(template: str, messages: Any = HELLO, **options: Any) -> str:
    return render_chat(template, messages, **{"bos_token": "<s>", "eos_token": "</s>", **options})


def read_template(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return json.loads(text)["chat_template"] if path.suffix == ".json" else text


def outcome(shared: Path, case: dict[str, Any], context: dict[str, Any]) -> str:
    arguments = {"messages", "add_generation_prompt", "tools", "bos_token", "eos_token", "tools_in_user_message"}
    try:
        return render_chat(
            read_template(shared / "chat_templates" / case["template"]),
            context["messages"],
            bos_token=case["special_tokens"]["bos_token"],
            eos_token=case["special_tokens"]["eos_token"],
            add_generation_prompt=context["add_generation_prompt"],
            tools=context.get("tools"),
            variables={name: value for name, value in context.items() if name not in arguments},
            now=NOW,
        )
    except TemplateError as error:
        return f"error: {error}"


def test_real_templates_render_what_transformers_renders_byte_for_byte(shared: Path) -> None:
    golden = json.loads((shared / "golden" / "chat_templates.json").read_text(encoding="utf-8"))
    rendered = [case for case in golden["cases"] if "rendered" in case]
    assert len(rendered) > 30
    for case in rendered:
        assert outcome(shared, case, golden["contexts"][case["context"]]) == case["rendered"], case["template"]


def test_real_templates_refuse_what_transformers_refuses_for_the_same_reason(shared: Path) -> None:
    golden = json.loads((shared / "golden" / "chat_templates.json").read_text(encoding="utf-8"))
    refused = [case for case in golden["cases"] if "error" in case]
    assert len(refused) > 8
    for case in refused:
        message = outcome(shared, case, golden["contexts"][case["context"]])
        assert message.startswith("error: the chat template"), case["template"]
        assert case["error"].split(": ", 1)[1] in message


def test_a_conversation_of_a_thousand_messages_stays_within_the_budget(shared: Path) -> None:
    golden = json.loads((shared / "golden" / "chat_templates.json").read_text(encoding="utf-8"))
    messages = [{"role": role, "content": "Tell me more. " * 5} for _ in range(500) for role in ("user", "assistant")]
    for name in sorted({case["template"] for case in golden["cases"]}):
        text = render(read_template(shared / "chat_templates" / name), messages, tools=[], now=NOW)
        assert text.count("Tell me more.") == 5000, name


def test_braces_in_a_message_stay_as_they_are() -> None:
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    content = "{{ 7*7 }} {% raise %} {# no #} <b>&amp;</b>"
    assert render(template, [{"role": "user", "content": content}]) == f"[{content}]"


def test_json_is_written_as_transformers_writes_it() -> None:
    assert render("{{ messages|tojson }}", [{"role": "user", "content": "é <b> & 'c'"}]) == (
        """[{"role": "user", "content": "é <b> & 'c'"}]"""
    )
    assert render("{{ [1, {'a': none}]|tojson(indent=2) }}") == '[\n  1,\n  {\n    "a": null\n  }\n]'


def test_the_parts_of_jinja_that_templates_use_all_work() -> None:
    assert render("{% for i in [0, 1, 2] %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}") == "02"
    assert render("{% for i in [0, 1, 2] %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "0"
    assert render("{% generation %}{{ messages[0]['content'] }}{% endgeneration %}!") == "Hello!"
    assert render("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}") == "1"
    assert render("{{ bos_token }}{{ eos_token ~ 1 ~ none }}{{ strftime_now('%d %b %Y') }}", now=NOW) == "<s></s>1None26 Jul 2024"
    assert render("{{ messages|map(attribute='role')|join(',') }}{{ messages[-1:]|length }}{{ (1, 2)[1] }}") == "user12"
    assert render("{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ 'e' in messages[0].content }}") == "1True"
    assert (
        render("{% if messages[0].content.startswith(('a', 'H')) %}yes{% endif %}{{ tools is none }}{{ x is defined }}")
        == "yesTrueFalse"
    )
    assert (
        render("{% macro m(x) %}<{{ x }}{{ caller() }}>{% endmacro %}{% call m(1) %}in{% endcall %}{{ loop is defined }}")
        == "<1in>False"
    )
    assert render("{% for k, v in messages[0]|items %}{{ loop.index }}/{{ loop.length }}{{ k }}={{ v }};{% endfor %}") == (
        "1/2role=user;2/2content=Hello;"
    )
    assert render("  {% if true %}\n  a\n  {% endif %}\nb") == "  a\nb"


def test_a_template_may_read_variables_of_its_own_but_not_have_the_messages_replaced() -> None:
    assert (
        render("{{ enable_thinking }} {{ messages[0].content }}", variables={"enable_thinking": False, "messages": []})
        == "False Hello"
    )


def test_a_missing_special_token_is_written_as_nothing() -> None:
    assert render("[{{ bos_token }}]", bos_token=None) == "[]"


@pytest.mark.parametrize("messages", [["Hello"], [{"role": "user", "content": object()}], [{"role": "user", "content": b"Hello"}]])
def test_messages_that_are_not_json_are_refused_by_name(messages: Any) -> None:
    with pytest.raises(TemplateError, match="message 0"):
        render("{{ messages }}", messages)


def test_messages_nested_without_end_are_refused() -> None:
    content: list[Any] = []
    content.append(content)
    with pytest.raises(TemplateError, match="nested"):
        render("{{ messages }}", [{"role": "user", "content": content}])


def test_a_refusal_says_what_the_template_said() -> None:
    with pytest.raises(TemplateError, match="refused the messages: Only one user; "):
        render("{{ raise_exception('Only one\nuser') }}")


BEGUN = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two,"}]


def test_a_message_is_continued_where_it_ends() -> None:
    plain = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    wish = {"continue_final_message": True, "add_generation_prompt": False}
    assert render(plain, BEGUN, **wish) == "<user>Count.<end><assistant>One, two,"
    spaced = [BEGUN[0], {"role": "assistant", "content": "One, two, "}]
    assert render(plain, spaced, **wish) == "<user>Count.<end><assistant>One, two, "
    assert render(plain.replace("m.content", "m.content | trim"), spaced, **wish) == "<user>Count.<end><assistant>One, two,"
    parts = [BEGUN[0], {"role": "assistant", "content": [{"type": "text", "text": "One"}, {"type": "image"}]}]
    joined = plain.replace("{{ m.content }}", "{% for p in m.content if m.content is not string %}{{ p.text }}{% endfor %}")
    assert render(joined, parts, **wish) == "<user><end><assistant>One"
    assert spaced[1]["content"] == "One, two, ", "the caller's messages are unchanged"


@pytest.mark.parametrize("trim", ["", " | trim"])
@pytest.mark.parametrize(("content", "begun"), [(None, ""), ("", ""), ("\n", "\n"), ("One\n", "One\n")])
def test_an_answer_that_is_still_empty_begins_where_its_text_would(content: str | None, begun: str, trim: str) -> None:
    template = f"{{% for m in messages %}}<{{{{ m.role }}}}>\n{{{{ m.content{trim} }}}}<end>{{% endfor %}}"
    messages = [BEGUN[0], {"role": "assistant", "content": content}]
    text = render(template, messages, continue_final_message=True, add_generation_prompt=False)
    assert text == f"<user>\nCount.<end><assistant>\n{begun.strip() if trim else begun}"


@pytest.mark.parametrize("messages", [[], [{"role": "assistant", "content": [{"type": "image"}]}]])
def test_there_must_be_a_text_to_continue(messages: Any) -> None:
    with pytest.raises(TemplateError, match="there is no last message with a text to continue"):
        render("{{ messages }}", messages, continue_final_message=True, add_generation_prompt=False)


def test_what_a_template_leaves_out_cannot_be_continued() -> None:
    with pytest.raises(TemplateError, match="the template leaves out the text of the last message"):
        render("{{ messages[0].content }}", BEGUN, continue_final_message=True, add_generation_prompt=False)
    with pytest.raises(TemplateError, match="continues its last message or begins an answer, not both"):
        render("{{ messages[0].content }}", BEGUN, continue_final_message=True, add_generation_prompt=True)


def test_documents_reach_the_template() -> None:
    template = "{% for d in documents or [] %}[{{ d.title }}]{% endfor %}"
    assert render(template, [], documents=[{"title": "a"}, {"title": "b"}]) == "[a][b]"
    assert render(template, []) == ""


def test_the_code_of_a_template_is_kept_and_nothing_of_what_it_was_run_with() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ strftime_now('%Y') }}{{ eos_token }}{# kept #}"
    before = compiled.cache_info().misses
    for number, eos_token in enumerate(["</s>", None, "</s>"]):
        now = datetime.datetime(2000 + number, 1, 1)
        text = render_chat(template, [{"role": "user", "content": f"{number} "}], bos_token=None, eos_token=eos_token, now=now)
        assert text == f"{number} {2000 + number}{eos_token or ''}"
    assert compiled.cache_info().misses == before + 1


def test_each_run_of_a_template_has_a_budget_of_its_own() -> None:
    template = "{% for a in range(n) %}{% for b in range(n) %}x{% endfor %}{% endfor %}"
    shown = functools.partial(render_chat, template, [], bos_token=None, eos_token=None)
    for _ in range(2):
        with pytest.raises(TemplateError, match="stopped"):
            shown(variables={"n": 5000})
        for _ in range(3):
            assert len(shown(variables={"n": 120})) == 120 * 120


def test_the_seconds_of_a_template_are_those_of_its_thread(monkeypatch):
    budget = Budget(100)
    monkeypatch.setattr(time, "monotonic", lambda: 1e9)  # the machine was asleep
    budget.spend(1)
    monkeypatch.setattr(time, "thread_time", lambda: 1e9)
    with pytest.raises(SecurityError, match="more steps than any chat template needs"):
        budget.spend(1)
