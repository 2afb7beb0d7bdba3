"""How a model writes thinking and calls is found in its chat template, and answers in that form are read."""

# ruff: noqa: RUF001 - DeepSeek's control tokens have fullwidth bars

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onnx_textgen.answers.answer_reader import AnswerReader
from onnx_textgen.answers.response_template import read_response_template
from onnx_textgen.answers.tools import Tool
from onnx_textgen.derivation import template_probe
from onnx_textgen.derivation.answer_form import CALL_ID, PROMPTED
from onnx_textgen.derivation.derive import NOTHING, Derived, derive
from onnx_textgen.derivation.form_templates import read_calls, response_template_of
from onnx_textgen.text.chat_template import render_chat
from support.chat_templates import COMMAND, HARMONY

WEATHER = Tool("get_weather", parameters={"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}})
STOP = Tool("stop")
PARIS = ("get_weather", {"city": "Paris"})
QUOTES = ("get_weather", {"city": 'Val d\'Isère "up" {1} 🙂\n</p>', "days": 3})
ENDS = {
    "llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja": "<｜end▁of▁sentence｜>",
    "llama.cpp/microsoft-Phi-3.5-mini-instruct.jinja": "<|endoftext|>",
}
HERMES, CODER = "<tool_call>\n{}\n</tool_call>", "<tool_call>\n<function={}>\n{}</function>\n</tool_call>"
R1_BEGIN, R1_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
R1 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"


def as_object(name: str, arguments: dict[str, Any], key: str = "arguments", *, ascii_only: bool = False) -> str:
    return json.dumps({"name": name, key: arguments}, ensure_ascii=ascii_only)


def as_tags(name: str, arguments: dict[str, Any]) -> str:
    return CODER.format(name, "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()))


def hermes(*calls: tuple[str, dict[str, Any]], **how: Any) -> str:
    return "\n".join(HERMES.format(as_object(*call, **how)) for call in calls)


def r1(*calls: tuple[str, dict[str, Any]]) -> str:
    return R1_BEGIN + "\n".join(R1.format(name, json.dumps(arguments)) for name, arguments in calls) + R1_END


LIKE_HERMES: list[tuple[str, str, str, list[Any]]] = [
    ("It rains.", "It rains.", "", []),
    (hermes(PARIS), "", "", [PARIS]),
    (hermes(PARIS, ("stop", {})), "", "", [PARIS, ("stop", {})]),
    (hermes(QUOTES), "", "", [QUOTES]),
    (hermes(QUOTES, ascii_only=True), "", "", [QUOTES]),
    (f"Let me look.\n{hermes(PARIS)}", "Let me look.", "", [PARIS]),
    (f"{hermes(PARIS)}\nDone.", "Done.", "", [PARIS]),
    ('<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>', "", "", [PARIS]),
    (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa',
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa',
        "",
        [],
    ),
    (
        '<tool_call>\n{"name": get_weather}\n</tool_call>\n' + hermes(("stop", {})),
        '<tool_call>\n{"name": get_weather}\n</tool_call>',
        "",
        [("stop", {})],
    ),
    (f"Use <tool_call> so:\n{hermes(PARIS)}", f"Use <tool_call> so:\n{hermes(PARIS)}", "", []),
    (hermes(PARIS).removesuffix("\n</tool_call>"), "", "", [PARIS]),
]
WITH_THINKING = [
    (f"<think>\nHm <tool_call>.\n</think>\n\n{hermes(PARIS)}", "", "Hm <tool_call>.", [PARIS]),
    ("<think>\n\n</think>\n\nIt rains.", "It rains.", "", []),
    ("<think>\nIt is cut", "", "It is cut", []),
]
LIKE_LLAMA = [
    ('{"name": "get_weather", "parameters": {"city": "Paris"}}', "", "", [PARIS]),
    (as_object(*QUOTES, key="parameters"), "", "", [QUOTES]),
    ('<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}', "", "", [PARIS]),
    ('I say {"name": "get_weather"}.', 'I say {"name": "get_weather"}.', "", []),
    ('{"name": "get_weather", "parameters": {"ci', '{"name": "get_weather", "parameters": {"ci', "", []),
    ('{"nice": "JSON"}', '{"nice": "JSON"}', "", []),
]
LIKE_R1 = [
    ("I see.\n</think>\n\nIt rains.", "It rains.", "I see.", []),
    (f"I see.\n</think>\n\n{r1(PARIS)}", "", "I see.", [PARIS]),
    (f"</think>{r1(PARIS, ('stop', {}))}", "", "", [PARIS, ("stop", {})]),
    (f"</think>Let me look.{r1(QUOTES)}", "Let me look.", "", [QUOTES]),
    (f"</think>{r1(PARIS).replace(R1_END, '')}", "", "", [PARIS]),
]
CUT_TAG = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n</tool_call>"
LIKE_CODER = [
    (CUT_TAG, CUT_TAG, "", []),
    (as_tags(*PARIS), "", "", [PARIS]),
    (f"I look.\n\n{as_tags(*PARIS)}\n{as_tags('stop', {})}", "I look.", "", [PARIS, ("stop", {})]),
    (as_tags(*QUOTES), "", "", [QUOTES]),
    ("<tool_call><function=get_weather><parameter=city>Paris</parameter></function></tool_call>", "", "", [PARIS]),
]
ANSWERS = {
    "llama.cpp/Qwen-Qwen2.5-7B-Instruct.jinja": LIKE_HERMES,
    "llama.cpp/NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja": LIKE_HERMES,
    "llama.cpp/google-gemma-2-2b-it.jinja": LIKE_HERMES,
    "llama.cpp/microsoft-Phi-3.5-mini-instruct.jinja": LIKE_HERMES,
    "onnxruntime-extensions/qwen3/tokenizer_config.json": LIKE_HERMES + WITH_THINKING,
    "onnxruntime-extensions/smollm3/chat_template.jinja": LIKE_HERMES + WITH_THINKING,
    "llama.cpp/meta-llama-Llama-3.1-8B-Instruct.jinja": LIKE_LLAMA,
    "llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja": LIKE_R1,
    "minja_contexts/Qwen-Qwen3-Coder-30B-A3B-Instruct.jinja": LIKE_CODER,
}
PREFIXES = {"llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja": "<think>\n"}
TURN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}{% if m.tool_calls %}CALLS{% endif %}<|end|>{% endfor %}"
BEGIN = "{% if tools %}{{ tools | tojson }}{% endif %}"
PROMPT = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
EACH, NEXT = "{% for c in m.tool_calls %}", "{{ ', ' if not loop.last }}{% endfor %}"
NAME, ARGUMENTS = "{{ c.function.name }}", "{{ c.function.arguments | tojson }}"
MADE_UP = {
    "a list after a mark": (
        "[TOOL_CALLS] ["
        + EACH
        + "{{ {'name': c.function.name, 'arguments': c.function.arguments, 'id': c.id} | tojson }}"
        + NEXT
        + "]",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "1"}, {"name": "stop", "arguments": {}}]',
    ),
    "a list between marks": (
        "<|ACTION|>["
        + EACH
        + "{{ {'tool_name': c.function.name, 'parameters': c.function.arguments} | tojson }}"
        + NEXT
        + "]<|END|>",
        '<|ACTION|>[{"tool_name": "get_weather", "parameters": {"city": "Paris"}},\n'
        '{"tool_name": "stop", "parameters": {}}]<|END|>',
    ),
    "calls of Python": (
        "[{% for c in m.tool_calls %}{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}"
        "{{ ', ' if not loop.last }}{% endfor %}){{ ', ' if not loop.last }}{% endfor %}]",
        "[get_weather(city='Paris'), stop()]",
    ),
    "an object in an object": (
        EACH + "<call>{{ {'function': {'name': c.function.name, 'arguments': c.function.arguments}} | tojson }}</call>{% endfor %}",
        '<call>{"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}</call>'
        '<call>{"function": {"name": "stop", "arguments": {}}}</call>',
    ),
    "a name, and JSON": (
        "<calls>" + EACH + "<call name=" + NAME + ">" + ARGUMENTS + "</call>{% endfor %}</calls>",
        '<calls><call name=get_weather>{"city": "Paris"}</call><call name=stop>{}</call></calls>',
    ),
    "a name, and JSON to the next call": (
        EACH + "[TOOL_CALLS]" + NAME + "[ARGS]" + ARGUMENTS + "{% endfor %}",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]stop[ARGS]{}',
    ),
    "a name, an id and JSON": (
        EACH + "[TOOL_CALLS]" + NAME + "[CALL_ID]abcdef123[ARGS]" + ARGUMENTS + "{% endfor %}",
        '[TOOL_CALLS]get_weather[CALL_ID]z9y8x7w6v[ARGS]{"city": "Paris"}[TOOL_CALLS]stop[CALL_ID]000000000[ARGS]{}',
    ),
    "a name in a number": (
        "<calls>" + EACH + "<call>functions." + NAME + ":{{ loop.index0 }}<args>" + ARGUMENTS + "</call>{% endfor %}</calls>",
        '<calls><call>functions.get_weather:0<args>{"city": "Paris"}</call><call>functions.stop:1<args>{}</call></calls>',
    ),
    "a name in the id, as Kimi K2 writes it": (
        "<calls>" + EACH + "<call>{{ c.id }}<args>" + ARGUMENTS + "</call>{% endfor %}</calls>",
        '<calls><call>functions.get_weather:0<args>{"city": "Paris"}</call><call>functions.stop:1<args>{}</call></calls>',
    ),
    "an id before the name": (
        "<calls>" + EACH + "<call>{{ c.id }}<name>" + NAME + "<args>" + ARGUMENTS + "</call>{% endfor %}</calls>",
        '<calls><call>a1b2c3d4e<name>get_weather<args>{"city": "Paris"}</call><call>000000000<name>stop<args>{}</call></calls>',
    ),
    "a list with numbers": (
        "<|ACTION|>["
        + EACH
        + """{"id": "{{ loop.index0 }}", "tool": {{ c.function.name | tojson }}, "with": {{ c.function.arguments | tojson }}}"""
        + NEXT
        + "]<|END|>",
        '<|ACTION|>[{"id": "0", "tool": "get_weather", "with": {"city": "Paris"}}, {"id": "1", "tool": "stop", "with": {}}]<|END|>',
    ),
    "texts between marks of their own, as Gemma writes them": (
        EACH
        + "<call>call:"
        + NAME
        + "{{ '{' }}{% for k, v in c.function.arguments.items() %}{{ k }}:{% if v is string %}<q>{{ v }}<q>{% elif v is iterable %}"
        "[<q>{{ v[0] }}<q>,{{ '{' }}argtwo:true{{ '}' }}]{% else %}{{ v }}{% endif %}{{ ',' if not loop.last }}{% endfor %}"
        "{{ '}' }}</call>{% endfor %}",
        "<call>call:get_weather{city:<q>Paris<q>}</call><call>call:stop{}</call>",
    ),
    "tags that say whether a value is text, as DeepSeek V3.2 writes them": (
        "<calls>"
        + EACH
        + "<invoke="
        + NAME
        + ">{% for k, v in c.function.arguments.items() %}<arg={{ k }}{% if v is string %} text=1>{{ v }}{% else %} text=0>"
        "{{ v | tojson }}{% endif %}</arg>{% endfor %}</invoke>{% endfor %}</calls>",
        "<calls><invoke=get_weather><arg=city text=1>Paris</arg></invoke><invoke=stop></invoke></calls>",
    ),
    "calls of Python between marks": (
        "<|call|>[{% for c in m.tool_calls %}{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}="
        "{{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %}){{ ', ' if not loop.last }}{% endfor %}]<|/call|>",
        "<|call|>[get_weather(city='Paris'), stop()]<|/call|>",
    ),
    "a name, and tags at once": (
        "{% for c in m.tool_calls %}<call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}<key>{{ k }}</key>"
        "<value>{{ v }}</value>{% endfor %}</call>{% endfor %}",
        "<call>get_weather<key>city</key><value>Paris</value></call><call>stop</call>",
    ),
    "arguments in tags in a block": (
        "<calls>\n{% for c in m.tool_calls %}<invoke name={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}"
        "<arg key={{ k }}>{{ v }}</arg>\n{% endfor %}</invoke>\n{% endfor %}</calls>",
        "<calls>\n<invoke name=get_weather>\n<arg key=city>Paris</arg>\n</invoke>\n<invoke name=stop>\n</invoke>\n</calls>",
    ),
}


def template_at(shared: Path, name: str) -> str:
    text = (shared / "chat_templates" / name).read_text(encoding="utf-8")
    return str(json.loads(text)["chat_template"]) if name.endswith(".json") else text


def derived_at(shared: Path, name: str) -> Derived:
    return derive(template_at(shared, name), bos_token="<s>", eos_token=ENDS.get(name, "</s>"))


def read(
    derived: Derived, answer: str, *, prefix: str = "", size: int = 3, tools: tuple[Tool, ...] = (WEATHER, STOP)
) -> AnswerReader:
    reader = AnswerReader(read_response_template(response_template_of(derived.form)), prefix=prefix, tools=tools)
    deltas = [reader.push(answer[i : i + size]) for i in range(0, len(answer), size)]
    deltas.append(reader.flush())
    assert "".join(delta.text for delta in deltas) == reader.text
    assert "".join(delta.reasoning for delta in deltas) == reader.reasoning
    parts = [part for delta in deltas for part in delta.tool_calls]
    assert ["".join(part.arguments for part in parts if part.index == i) for i in range(len(reader.calls))] == [
        call.arguments_json for call in reader.calls
    ]
    assert all(part.arguments for part in parts), "a part of a call is never empty"
    return reader


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_in_a_models_own_form_are_read(name: str, shared: Path) -> None:
    derived = derived_at(shared, name)
    for answer, text, reasoning, calls in ANSWERS[name]:
        for size in (1, 7, 10_000):
            reader = read(derived, answer, prefix=PREFIXES.get(name, ""), size=size)
            found = (reader.text, reader.reasoning, [(call.name, call.arguments) for call in reader.calls])
            assert found == (text, reasoning, calls), answer


@pytest.mark.parametrize("name", ANSWERS)
def test_calls_written_in_the_derived_form_are_what_the_template_writes_and_are_read_again(name: str, shared: Path) -> None:
    derived = derived_at(shared, name)
    form = derived.form.calls or PROMPTED
    for calls in ([PARIS], [QUOTES], [("stop", {})]):
        written = form.write(calls)
        reader = read(derived, written)
        assert [(call.name, call.arguments) for call in reader.calls] == calls
        assert reader.text == ""


@pytest.mark.parametrize("name", MADE_UP)
def test_other_forms_of_calls_are_found_too(name: str) -> None:
    calls, answer = MADE_UP[name]
    template = BEGIN + TURN.replace("CALLS", calls) + PROMPT
    derived = derive(template, bos_token="", eos_token="<|end|>")
    assert derived.form.calls is not None
    assert derived.takes_tools
    assert derived.writes_calls
    reader = read(derived, f"I look.\n{answer}" if derived.form.calls.kind != "python" else answer)
    assert [(call.name, call.arguments) for call in reader.calls] == [PARIS, ("stop", {})]
    assert derived.form.calls.write([PARIS]) in derived_texts(template), "as the template writes it"


def derived_texts(template: str) -> str:
    """A history with one call, as the template writes it."""

    call = {"id": "functions.get_weather:0", "type": "function", "function": {"name": PARIS[0], "arguments": PARIS[1]}}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    text = render_chat(template, messages, bos_token="", eos_token="", add_generation_prompt=False, tools=[WEATHER.as_json()])
    return text.replace(', "id": "functions.get_weather:0"', "").replace(
        "<call>functions.get_weather:0<name>", f"<call>{CALL_ID}<name>"
    )


@pytest.mark.parametrize("template", ["", "{{ raise_exception('no') }}", "{% for m in messages %}{{ m.content }}{% endfor %}"])
def test_a_template_that_shows_nothing_gives_nothing(template: str) -> None:
    assert derive(template, bos_token="", eos_token="") == NOTHING


@pytest.mark.parametrize("name", ANSWERS)
def test_transformers_reads_the_same_by_the_derived_template(name: str, shared: Path) -> None:
    parsing = pytest.importorskip("transformers.utils.chat_parsing")
    derived, compared = derived_at(shared, name), 0
    template = response_template_of(derived.form)
    tools = [WEATHER.as_json(), STOP.as_json()]
    for answer, _, reasoning, calls in ANSWERS[name]:
        try:
            message = parsing.parse_response(answer, template, prefix=derived.form.anchor + PREFIXES.get(name, ""), tools=tools)
        except ValueError:
            continue  # of a broken call, which we keep as text
        if answer == CUT_TAG:
            continue  # transformers leaves the unfinished argument out
        compared += 1
        assert [(each["function"]["name"], each["function"]["arguments"]) for each in message.get("tool_calls", [])] == calls
        assert message.get("reasoning_content", "") == reasoning
    assert compared >= 4


@pytest.mark.parametrize("size", [900, 100_000])
def test_lists_in_lists_in_a_template_do_no_harm(size: int) -> None:
    template = BEGIN + TURN.replace("CALLS", "{{ '[' * " + str(size) + " }}" + EACH + NAME + ARGUMENTS + "{% endfor %}") + PROMPT
    assert derive(template, bos_token="", eos_token="<|end|>").writes_calls


def test_a_template_with_thousands_of_tags_is_rendered_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = 0

    def counting(*given: Any, **how: Any) -> str:
        nonlocal rendered
        rendered += 1
        return render_chat(*given, **how)

    monkeypatch.setattr(template_probe, "render_chat", counting)
    derive("{#" + "".join(f"</a{number}>" for number in range(3000)) + "#}" + TURN + PROMPT, bos_token="", eos_token="<|end|>")
    assert rendered < 80


@pytest.mark.parametrize("closing", ["</think>", "<think>"])
def test_the_beginning_of_an_answer_ends_with_a_whole_mark(closing: str) -> None:
    """GLM 4.7 opens the thinking in a prompt, and closes it at once in a history: both begin with `<`."""
    answer = "<|{{ m.role }}|>{% if m.role == 'assistant' %}" + (
        "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}{% endif %}"
    )
    answer += (
        "</think>{% endif %}{{ m.content }}{% if m.tool_calls %}"
        + EACH
        + "<call>"
        + NAME
        + "<a>"
        + ARGUMENTS
        + "</call>{% endfor %}"
    )
    template = "{% for m in messages %}" + answer + "{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>"
    derived = derive(BEGIN + template + closing + "{% endif %}", bos_token="", eos_token="<|end|>")
    assert derived.form.anchor == "<|assistant|>"
    assert derived.form.reasoning is not None
    assert derived.form.reasoning.marks == ("<think>", "</think>")


def test_a_form_that_would_be_written_otherwise_than_the_template_writes_it_is_refused() -> None:
    calls = (
        EACH + "<call>" + NAME + "{{ '{' }}{% for k, v in c.function.arguments.items() %}{{ k }}:{% if v is string %}'{{ v }}'"
        "{% else %}{{ v }}{% endif %}{{ ',' if not loop.last }}{% endfor %}{{ '}' }}</call>{% endfor %}"
    )
    derived = derive(BEGIN + TURN.replace("CALLS", calls) + PROMPT, bos_token="", eos_token="<|end|>")
    assert derived.form.calls is None, "text is between quotes, and numbers are not"
    assert derived.writes_calls, "earlier calls are written by the template"


UNKNOWN = {
    "a name with nothing before it": EACH + NAME + "\n" + ARGUMENTS + "{% endfor %}",
    "a name that is written twice": EACH + "<to=" + NAME + "><call=" + NAME + ">" + ARGUMENTS + "</call>{% endfor %}",
    "a name that is a key": EACH + "<call>{{ {c.function.name: c.function.arguments} | tojson }}</call>{% endfor %}",
    "arguments that are tags with their own names": EACH
    + "<call="
    + NAME
    + ">{% for k, v in c.function.arguments.items() %}<{{ k }}>{{ v }}</{{ k }}>{% endfor %}</call>{% endfor %}",
    "nothing, as Granite 3.3 does": "",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_where_a_template_shows_tools_and_no_form_of_calls_nothing_is_read_as_a_call(name: str) -> None:
    derived = derive(BEGIN + TURN.replace("CALLS", UNKNOWN[name]) + PROMPT, bos_token="", eos_token="<|end|>")
    assert derived.takes_tools
    assert derived.form.calls is None
    for answer in (hermes(PARIS), "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>"):
        reader = read(derived, answer)
        assert (reader.text, reader.calls) == (answer, [])


def test_without_tools_in_the_template_calls_have_the_form_that_the_system_message_tells() -> None:
    derived = derive(TURN.replace("CALLS", "") + PROMPT, bos_token="", eos_token="<|end|>")
    assert not derived.takes_tools
    assert derived.form.calls == PROMPTED


def test_marks_around_text_and_thinking_before_calls_are_found_though_each_chat_ends_with_the_next_beginning() -> None:
    """As in Command R7B's template."""
    derived = derive(COMMAND, bos_token="", eos_token="<|eos|>")
    assert derived.form.text is not None
    assert (derived.form.text.open, derived.form.text.close) == ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
    assert derived.form.reasoning is not None
    assert derived.form.reasoning.marks == ("<|START_THINKING|>", "<|END_THINKING|>")
    action = '<|START_ACTION|>[{"tool_name": "get_weather", "parameters": {"city": "Paris"}}]<|END_ACTION|>'
    for answer, *expected in (
        ("<|START_RESPONSE|>It rains.<|END_RESPONSE|>", "It rains.", "", []),
        (f"<|START_THINKING|>I look.<|END_THINKING|>{action}", "", "I look.", [PARIS]),
        ("<|START_THINKING|>I see.<|END_THINKING|><|START_RESPONSE|>It rains.<|END_RESPONSE|>", "It rains.", "I see.", []),
    ):
        for size in (1, 7, 10_000):
            reader = read(derived, answer, size=size)
            assert [reader.text, reader.reasoning, [(call.name, call.arguments) for call in reader.calls]] == expected


CALL_JSON = '{"city": "Paris"}'
IN_CHANNELS: list[tuple[str, str, str, list[Any]]] = [
    ("<|channel|>final<|message|>It rains.<|return|>", "It rains.", "", []),
    ("<|channel|>commentary<|message|>A.<|end|><|start|>assistant<|channel|>final<|message|>B.", "A.B.", "", []),
    ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>B.", "B.", "Hm.", []),
    (f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{CALL_JSON}<|call|>", "", "", [PARIS]),
    (f"<|channel|>analysis to=functions.get_weather<|message|>{CALL_JSON}", "", "", [PARIS]),
    (f" to=functions.get_weather<|channel|>commentary json<|message|>{CALL_JSON}", "", "", [PARIS]),
    (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
        f"<|message|>{CALL_JSON}",
        "",
        "Hm.",
        [PARIS],
    ),
    ("<|channel|>final <|constrain|>json<|message|>[1]", "[1]", "", []),
    ("<|channel|>analysis<|message|>It is cut", "", "It is cut", []),
    ("<|channel|>commentary to=functions.stop<|message|>{no", "<|channel|>commentary to=functions.stop<|message|>{no", "", []),
]


def test_an_answer_in_channels_is_thinking_calls_and_text_by_its_headers() -> None:
    """As gpt-oss writes: the name of a call may stand before or after the channel, and a text may be in other channels."""
    derived = derive(HARMONY, bos_token="", eos_token="<|eos|>")
    assert derived.form.header == ("<|channel|>", "<|message|>")
    assert derived.form.calls is not None
    assert not derived.form.calls.several
    for answer, *expected in IN_CHANNELS:
        for size in (1, 7, 10_000):
            reader = read(derived, answer, size=size)
            assert [reader.text, reader.reasoning, [(call.name, call.arguments) for call in reader.calls]] == expected, answer


@pytest.mark.parametrize("mark", ["</think>", "<think>\n"])
def test_marks_of_thinking_that_a_template_writes_before_each_answer_are_not_part_of_the_anchor(mark: str) -> None:
    answer = (
        "{% if m.role == 'assistant' %}{% if not m.tool_calls %}"
        + mark
        + "{% endif %}{{ m.content.split('</think>') | last }}{% else %}{{ m.content }}{% endif %}"
    )
    prompt = PROMPT.replace("<|assistant|>", "<|assistant|>{% if think %}<think>\n{% else %}" + mark + "{% endif %}")
    template = TURN.replace("{{ m.content or '' }}", answer).replace("CALLS", EACH + NAME + ARGUMENTS + "{% endfor %}") + prompt
    derived = derive(template, bos_token="", eos_token="<|end|>")
    assert derived.form.anchor == "<|assistant|>"
    assert derived.form.reasoning is not None
    assert derived.form.reasoning.marks == ("<think>", "</think>")
    assert derived.form.calls is not None
    assert "think" not in derived.form.calls.write([PARIS])


def test_the_end_of_the_text_is_not_part_of_what_ends_the_calls() -> None:
    turn = "{% for m in messages %}<|{{ m.role }}|>{% if m.tool_calls %}<calls>" + EACH + "<call>" + NAME + " " + ARGUMENTS
    turn += "</call>{% endfor %}</calls>{% else %}<answer>{{ m.content }}</answer>{% endif %}<|end|>{% endfor %}"
    derived = derive(BEGIN + turn + PROMPT, bos_token="", eos_token="<|end|>")
    assert derived.form.calls is not None
    assert derived.form.calls.end == "</calls>"


def test_the_response_templates_in_the_docs_read_calls_and_tell_their_form() -> None:
    page = (Path(__file__).parents[3] / "docs/tools.md").read_text(encoding="utf-8")
    granite, lfm2 = (json.loads(block.partition("```")[0]) for block in page.split("```json\n")[1:])
    called = '[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "stop", "arguments": {}}]'
    for data, answer in (
        (granite, f"I look.<|tool_call|>{called}"),
        (lfm2, "I look.<|tool_call_start|>[get_weather(city='Paris'), stop()]<|tool_call_end|>"),
    ):
        template = read_response_template(data)
        form = read_calls(template)
        assert form is not None
        for text in (answer, "I look." + form.write([PARIS, ("stop", {})])):
            reader = AnswerReader(template, tools=(WEATHER, STOP))
            for character in text:
                reader.push(character)
            reader.flush()
            assert (reader.text, [(call.name, call.arguments) for call in reader.calls]) == ("I look.", [PARIS, ("stop", {})])
