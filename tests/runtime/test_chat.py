"""Chat templates: byte for byte what transformers renders, and nothing a hostile template could gain."""

import datetime
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from onnx_textgen.chat import render_chat
from onnx_textgen.errors import TemplateError

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


# Each begins a loop of sixty rounds over a variable that can grow; the last also ends it.
TEXT = "{% set n = namespace(x='aa') %}{% for i in range(60) %}"
LIST = "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
TWO_LISTS = (
    "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}"
)
HOSTILE = {
    "reaches for os through a global": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "reaches for os through self": "{{ self.__init__.__globals__.__builtins__.__import__('os').popen('id').read() }}",
    "climbs the classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "climbs the classes by a filter": "{{ ''|attr('__class__')|attr('__mro__') }}",
    "takes format by a filter": "{{ ('{0.__class__}'|attr('format'))(1) }}",
    "formats an attribute": "{{ '{0.__class__.__mro__}'.format(1) }}",
    "formats an attribute of a map": "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "formats to a width": "{{ '{:2000000000}'.format(1) }}",
    "formats to a width by a filter": "{{ '%2000000000d'|format(1) }}",
    "formats to a width by an operator": "{{ '%2000000000d' % 1 }}",
    "changes the messages": "{{ messages.append(1) }}",
    "lists a large range": "{{ range(1000000000)|list }}",
    "loops over a large range": "{% for i in range(1000000000) %}{% endfor %}",
    "nests loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "nests loops that skip": "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
    "nests loops over text": "{% set s = 'x' * 9999 %}{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}",
    "recurses in a loop": "{% for a in [range(999)] recursive %}{{ loop([range(999)]) }}{% endfor %}",
    "takes a power": "{{ (10**10000000)|string }}",
    "squares again and again": "{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}{{ n.x }}",
    "calls itself twice": "{% macro m(n) %}{% if n > 0 %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "calls itself for ever": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "multiplies text": "{{ 'A' * 10000000000 }}",
    "multiplies text from the right": "{{ 10000000000 * 'A' }}",
    "multiplies a list": "{{ [0] * 10000000000 }}",
    "centers text": "{{ 'x'.center(3000000000) }}",
    "centers text by a filter": "{{ 'x'|center(3000000000) }}",
    "fills with zeros": "{{ 'x'.zfill(3000000000) }}",
    "expands tabs": "{{ '\t'.expandtabs(3000000000) }}",
    "makes bytes of a number": "{{ (1).to_bytes(3000000000, 'big') }}",
    "indents far": "{{ 'a\nb'|indent(3000000000) }}",
    "indents JSON far": "{{ [[1]]|tojson(indent=3000000000) }}",
    "rounds far": "{{ 1|round(300000000) }}",
    "makes many slices": "{{ [1]|slice(3000000000)|list }}",
    "fills a batch": "{{ [1]|batch(3000000000, 0)|list }}",
    "writes much": "{% for i in range(99999) %}" + "x" * 10000 + "{% endfor %}",
    "writes much into a variable": "{% set a %}{% for i in range(99999) %}" + "x" * 10000 + "{% endfor %}{% endset %}",
    "doubles text": TEXT + "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubles text by adding": TEXT + "{% set n.x = n.x + n.x %}{% endfor %}",
    "doubles text by replacing": TEXT + "{% set n.x = n.x.replace('a', n.x) %}{% endfor %}",
    "doubles text by joining": TEXT + "{% set n.x = n.x.join([n.x, n.x]) %}{% endfor %}",
    "doubles a list": LIST + "{% set n.x = n.x + n.x %}{% endfor %}",
    "nests a list in itself": LIST + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "nests a list in itself for JSON": LIST + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|tojson }}",
    "nests a list in itself for a sum": LIST + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ 'a' ~ n.x }}",
    "nests a dict in itself": LIST + "{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}{{ n.x|string }}",
    "compares nested lists": TWO_LISTS + "{{ n.x == n.y }}",
    "compares nested lists in a test": TWO_LISTS + "{{ n.x is eq(n.y) }}",
    "compares nested lists in a filter": TWO_LISTS + "{{ [{'a': n.x}]|selectattr('a', 'equalto', n.y)|list }}",
    "looks a nested list up": TWO_LISTS + "{{ [n.x].index(n.y) }}",
    "hashes nested tuples": LIST + "{% set n.x = (n.x, n.x) %}{% endfor %}{{ {n.x: 1} }}",
    "keeps many slices": "{% set b = range(9999)|list %}"
    + LIST
    + "{% for i in b %}{% set n.x = [n.x, b[:]] %}{% endfor %}{% endfor %}",
    "keeps many lists": LIST + "{% for i in range(9999) %}{% set n.x = [n.x, [" + "0," * 9999 + "]] %}{% endfor %}{% endfor %}",
    "opens many brackets": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "asks for many attributes": "{{ a" + ".a" * 20000 + " }}",
    "is long": "{{ a }}" * 20000,
    "includes a file": "{% include '/etc/passwd' %}",
    "extends a file": "{% extends '/etc/passwd' %}",
    "imports a file": "{% import '/etc/passwd' as a %}",
    "makes random text": "{{ lipsum(1000000) }}",
    "ends too early": "{% for m in messages %}",
    "is no template": "{{ }}",
}


FAR_FROM_HANGING = 5.0
"""Seconds of processor time: far more than the fraction of one that a refusal takes, far less than the templates would."""


@pytest.mark.parametrize("template", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_template_is_refused_in_one_line_long_before_it_would_end(template: str) -> None:
    render("{{ messages }}")  # imports jinja2
    start = time.thread_time()
    with pytest.raises(TemplateError) as caught:
        render(template)
    assert time.thread_time() - start < FAR_FROM_HANGING
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''['__class__'] }}",
        "{{ messages.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__self__.__class__ }}",
        "{{ strftime_now('%999999999d')|length }}",
        "{{ namespace(a=1) }}",
    ],
)
def test_what_is_not_refused_is_harmless_and_quick(template: str) -> None:
    start = time.thread_time()
    try:
        text = render(template)
    except TemplateError:
        text = ""
    assert time.thread_time() - start < FAR_FROM_HANGING
    assert "class" not in text and len(text) < 100


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


def test_importing_the_module_does_not_import_jinja2() -> None:
    code = "import sys, onnx_textgen.chat; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
