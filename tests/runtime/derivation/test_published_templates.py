"""The forms of models whose chat templates are published, each with answers written by hand as the model writes them.

The templates are not ours to copy. They lie in llama.cpp's models/templates, with others beside them; `ONNX_TEXTGEN_CHAT_TEMPLATES`
names a folder of them. `test_derivation` has short templates with the same forms, which need no folder.
"""

# ruff: noqa: RUF001 - DeepSeek's control tokens have fullwidth bars

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from onnx_textgen.answers.answer_reader import AnswerReader
from onnx_textgen.answers.response_template import ResponseTemplate, read_response_template
from onnx_textgen.answers.tools import Tool
from onnx_textgen.derivation.answer_form import in_quotes
from onnx_textgen.derivation.derive import derive
from onnx_textgen.derivation.form_templates import response_template_of

VARIABLE = "ONNX_TEXTGEN_CHAT_TEMPLATES"
FOLDER = os.environ.get(VARIABLE)
TOOLS = (
    Tool("get_weather", parameters={"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}),
    Tool("stop"),
    Tool("set.plan", parameters={"properties": {"plan": {"type": "object"}, "on": {"type": "boolean"}}}),
)
MOST_CUTS = 160
"""Longer answers are read whole and character by character only: each cut reads the answer again."""
Arguments = Mapping[str, Any]
PARIS = ("get_weather", {"city": "Paris"})
QUOTES = ("get_weather", {"city": 'Val d\'Isère "up" {1} 🙂 [2], \\ <b>', "days": 3})
DEEP = ("set.plan", {"plan": {"steps": [{"do": "a}, {b"}, 2], "none": None}, "on": True})
STOP = ("stop", {})


@dataclasses.dataclass(frozen=True)
class Dialect:
    """How one model writes."""

    call: Callable[[str, Arguments, int], str]
    """A call; the number is its place."""
    begin: str = ""
    between: str = ""
    end: str = ""
    think: tuple[str, str] | None = None
    """What opens and closes the thinking."""
    text: tuple[str, str] = ("", "")
    """What opens and closes the text."""
    before_calls: str = ""
    """What the model writes before calls, after thinking or text."""
    eos: str = "</s>"
    several: bool = True
    calls_end: bool = True
    """Whether calls are recognised at their beginning, and not as a whole answer only."""

    def calls(self, *calls: tuple[str, Arguments]) -> str:
        """Calls as the model writes them."""
        written = self.between.join(self.call(*call, number) for number, call in enumerate(calls))
        return self.before_calls + self.begin + written + self.end


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def as_object(name: str, arguments: Arguments, _: int, *, names: tuple[str, str] = ("name", "arguments")) -> str:
    return as_json(dict(zip(names, (name, arguments), strict=True)))


def tags(template: str, tag: str, tag_json: str | None = None) -> Callable[[str, Arguments, int], str]:
    """Calls with an argument in each tag; `tag_json`: of values that are no text."""

    def call(name: str, arguments: Arguments, _: int) -> str:
        written = "".join(
            tag.format(key, value) if isinstance(value, str) else (tag_json or tag).format(key, as_json(value))
            for key, value in arguments.items()
        )
        return template.format(name, written)

    return call


def cohere(name: str, arguments: Arguments, number: int) -> str:
    return as_json({"tool_call_id": str(number), "tool_name": name, "parameters": arguments})


def kimi(name: str, arguments: Arguments, number: int) -> str:
    return f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{as_json(arguments)}<|tool_call_end|>"


def gemma(name: str, arguments: Arguments, _: int) -> str:
    return f"<|tool_call>call:{name}{in_quotes(arguments, *2 * ['<|' + chr(34) + '|>'])}<tool_call|>"


def python(name: str, arguments: Arguments, _: int) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


HERMES = Dialect(lambda *call: f"<tool_call>\n{as_object(*call)}\n</tool_call>", between="\n")
THINK = ("<think>", "</think>")
CODER = tags("<tool_call>\n<function={}>\n{}</function>\n</tool_call>", "<parameter={}>\n{}\n</parameter>\n")
KIMI = Dialect(kimi, "<|tool_calls_section_begin|>", end="<|tool_calls_section_end|>")
R1 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
DSML = tags(
    '<｜DSML｜invoke name="{}">\n{}</｜DSML｜invoke>\n',
    '<｜DSML｜parameter name="{}" string="true">{}</｜DSML｜parameter>\n',
    '<｜DSML｜parameter name="{}" string="false">{}</｜DSML｜parameter>\n',
)
GPT_OSS = Dialect(
    lambda name, arguments, _: f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{as_json(arguments)}",
    before_calls="<|start|>assistant",
    think=("<|channel|>analysis<|message|>", "<|end|>"),
    text=("<|start|>assistant<|channel|>final<|message|>", ""),
    several=False,
)
DIALECTS: dict[str, Dialect] = {
    "Bielik-11B-v3.0-Instruct": HERMES,
    "ByteDance-Seed-OSS": Dialect(
        tags("<seed:tool_call>\n<function={}>\n{}</function>\n</seed:tool_call>", "<parameter={}>{}</parameter>\n"),
        between="\n",
        think=("<seed:think>", "</seed:think>"),
    ),
    "Cohere2MoE": Dialect(
        cohere,
        "<|START_ACTION|>[\n    ",
        ",\n    ",
        "\n]<|END_ACTION|>",
        think=("<|START_THINKING|>", "<|END_THINKING|>"),
        text=("<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": Dialect(
        cohere,
        "<|START_ACTION|>[\n    ",
        ",\n    ",
        "\n]<|END_ACTION|>",
        think=("<|START_THINKING|>", "<|END_THINKING|>"),
        text=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": Dialect(
        lambda name, arguments, _: R1.format(name, as_json(arguments)),
        "<｜tool▁calls▁begin｜>",
        "\n",
        "<｜tool▁calls▁end｜>",
        think=THINK,
    ),
    "deepseek-ai-DeepSeek-V3.1": Dialect(
        lambda name, arguments, _: f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{as_json(arguments)}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        end="<｜tool▁calls▁end｜>",
        think=THINK,
    ),
    "deepseek-ai-DeepSeek-V3.2": Dialect(DSML, "<｜DSML｜function_calls>\n", end="</｜DSML｜function_calls>", think=THINK),
    "deepseek-ai-DeepSeek-V4": Dialect(DSML, "<｜DSML｜tool_calls>\n", end="</｜DSML｜tool_calls>", think=THINK),
    "GLM-4.6": Dialect(
        tags("<tool_call>{}\n{}</tool_call>", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"), between="\n", think=THINK
    ),
    "GLM-4.7-Flash": Dialect(tags("<tool_call>{}{}</tool_call>", "<arg_key>{}</arg_key><arg_value>{}</arg_value>"), think=THINK),
    "google-gemma-4-31B-it": Dialect(gemma, think=("<|channel>thought\n", "<channel|>")),
    "google-gemma-4-31B-it-interleaved": Dialect(gemma, think=("<|channel>thought\n", "<channel|>")),
    "ibm-granite-granite-4.0": HERMES,
    "inclusionai-ling-3.0-flash": Dialect(
        tags("<tool_call>{}\n{}</tool_call>", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"), between="\n", think=THINK
    ),
    "LFM2.5-8B-A1B": Dialect(python, "<|tool_call_start|>[", ", ", "]<|tool_call_end|>", think=THINK),
    "meetkai-functionary-medium-v3.1": Dialect(lambda name, arguments, _: f"<function={name}>{as_json(arguments)}</function>"),
    "meta-llama-Llama-3.2-3B-Instruct": Dialect(
        lambda *call: as_object(*call, names=("name", "parameters")), several=False, calls_end=False
    ),
    "MiniMax-M1": Dialect(as_object, "<tool_calls>\n", "\n", "\n</tool_calls>", several=False),
    "MiniMax-M2": Dialect(
        tags('<invoke name="{}">\n{}</invoke>\n', '<parameter name="{}">{}</parameter>\n'),
        "<minimax:tool_call>\n",
        end="</minimax:tool_call>",
        think=("<think>\n", "\n</think>\n\n"),
    ),
    "mistralai-Ministral-3-14B-Reasoning-2512": Dialect(
        lambda name, arguments, _: f"[TOOL_CALLS]{name}[ARGS]{as_json(arguments)}", think=("[THINK]", "[/THINK]")
    ),
    "mistralai-Mistral-Nemo-Instruct-2407": Dialect(
        lambda name, arguments, number: as_json({"name": name, "arguments": arguments, "id": f"abcd1234{number}"}),
        "[TOOL_CALLS][",
        ", ",
        "]",
    ),
    "Mistral-Small-3.2-24B-Instruct-2506": Dialect(
        lambda name, arguments, number: f"[TOOL_CALLS]{name}[CALL_ID]abcd1234{number}[ARGS]{as_json(arguments)}"
    ),
    "moonshotai-Kimi-K2": KIMI,
    "moonshotai-Kimi-K2-Thinking": dataclasses.replace(KIMI, think=THINK),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": Dialect(CODER, between="\n", think=("<think>\n", "\n</think>\n")),
    "NVIDIA-Nemotron-Nano-v2": Dialect(as_object, "<TOOLCALL>[", ", ", "]</TOOLCALL>", think=THINK),
    "openai-gpt-oss-120b": GPT_OSS,
    "openbmb-MiniCPM5-1B": Dialect(
        tags('<function name="{}">{}</function>', '<param name="{}">{}</param>'),
        between="\n",
        think=("<think>\n", "\n</think>\n\n"),
    ),
    "poolside-Laguna-XS-2.1": Dialect(
        tags("<tool_call>{}\n{}</tool_call>", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"), between="\n", think=THINK
    ),
    "Qwen-Qwen3-0.6B": dataclasses.replace(HERMES, think=("<think>\n", "\n</think>\n\n")),
    "Qwen-QwQ-32B": dataclasses.replace(HERMES, think=THINK),
    "Qwen3-Coder": Dialect(CODER, between="\n"),
    "Qwen3.5-4B": Dialect(CODER, between="\n", think=("<think>\n", "\n</think>\n\n")),
    "Reka-Edge": Dialect(HERMES.call, think=THINK),
    "Spark2.5": Dialect(tags("<tool_call>{}{}</tool_call>", "<arg_key>{}</arg_key><arg_value>{}</arg_value>"), think=THINK),
    "StepFun3.5-Flash": Dialect(CODER, think=("<think>\n", "\n</think>\n")),
    "tencent-Hy3": Dialect(
        tags(
            "<tool_call:opensource>{}<tool_sep:opensource>\n{}</tool_call:opensource>\n",
            "<arg_key:opensource>{}</arg_key:opensource>\n<arg_value:opensource>{}</arg_value:opensource>\n",
        ),
        "<tool_calls:opensource>\n",
        end="</tool_calls:opensource>",
        think=("<think:opensource>", "</think:opensource>"),
        eos="<｜hy_eos:opensource｜>",
    ),
    "unsloth-Apriel-1.5": Dialect(as_object, "<tool_calls>[", ", ", "]</tool_calls>"),
    "upstage-Solar-Open-100B": Dialect(
        lambda name, arguments, number: (
            f"<|tool_call:begin|>abcd1234{number}<|tool_call:name|>{name}<|tool_call:args|>{as_json(arguments)}<|tool_call:end|>"
        ),
        "<|tool_calls|>",
        end="<|calls|>",
        before_calls="<|begin|>assistant",
        think=("<|think|>", "<|end|>"),
        text=("<|begin|>assistant<|content|>", "<|end|>"),
    ),
}
UNKNOWN = {
    "Apertus-8B-Instruct": "the name is the key of the arguments",
    "CohereForAI-c4ai-command-r-plus-tool_use": "the end of the calls is not found",
    "ibm-granite-granite-3.3-2B-Instruct": "the template writes no calls",
    "Kimi-K3": "each argument has its type",
    "LFM2-8B-A1B": "the template writes no calls",
    "meetkai-functionary-medium-v3.2": "nothing stands before the name",
    "MiniMax-M3": "values that are no texts become tags too",
    "muse-glimmer": "the name is written twice",
}
"""Templates that show the model tools, and in which no form of calls is found."""


def template_of(name: str) -> str:
    path = Path(FOLDER or "") / f"{name}.jinja"
    if FOLDER is None or not path.is_file():
        pytest.skip(f"{VARIABLE} names no folder with {path.name}")
    return path.read_text(encoding="utf-8")


@functools.cache
def response_of(name: str) -> ResponseTemplate:
    derived = derive(template_of(name), bos_token="<s>", eos_token=DIALECTS[name].eos)
    assert derived.form.calls is not None
    return read_response_template(response_template_of(derived.form))


def read(response: ResponseTemplate, *pieces: str) -> tuple[str, str, list[tuple[str, Arguments]]]:
    reader = AnswerReader(response, tools=TOOLS)
    deltas = [*map(reader.push, pieces), reader.flush()]
    assert "".join(delta.text for delta in deltas) == reader.text
    assert "".join(delta.reasoning for delta in deltas) == reader.reasoning
    return reader.text, reader.reasoning, [(call.name, call.arguments) for call in reader.calls]


def answers_of(dialect: Dialect) -> list[tuple[str, str, str, list[tuple[str, Arguments]]]]:
    """Answers as the model writes them, with their text, thinking and calls."""
    first = dialect.before_calls
    one = dialect.calls(PARIS).removeprefix(first)  # an answer begins where the prompt ends
    text = dialect.text[0].removeprefix(first) + "It is \"sunny\".\n\n{'a': 1} 🙂" + dialect.text[1]
    answers = [(text, "It is \"sunny\".\n\n{'a': 1} 🙂", "", []), (one, "", "", [PARIS])]
    answers += [(dialect.calls(call).removeprefix(first), "", "", [call]) for call in (QUOTES, DEEP, STOP)]
    if dialect.several:
        calls: list[tuple[str, Arguments]] = [PARIS, STOP, QUOTES]
        answers.append((dialect.calls(*calls).removeprefix(first), "", "", calls))
    if dialect.calls_end:
        said = dialect.text[0].removeprefix(first) + "I look." + dialect.text[1]
        answers.append((said + dialect.calls(PARIS), "I look.", "", [PARIS]))
    if dialect.think is not None:
        thought = "Hm, which\ncity?".join(dialect.think)
        answers.append((thought + dialect.calls(PARIS), "", "Hm, which\ncity?", [PARIS]))
        answers.append((thought + "Done.".join(dialect.text), "Done.", "Hm, which\ncity?", []))
    return answers


@pytest.mark.parametrize("name", DIALECTS)
def test_answers_as_the_model_writes_them_are_read_whole_and_cut_in_two_anywhere(name: str) -> None:
    response = response_of(name)
    for answer, *expected in answers_of(DIALECTS[name]):
        found = read(response, answer)
        assert list(found) == expected, answer
        assert read(response, *answer) == found, "character by character"
        for cut in range(len(answer)) if len(answer) < MOST_CUTS else ():
            assert read(response, answer[:cut], answer[cut:]) == found, answer[:cut]


@pytest.mark.parametrize("name", DIALECTS)
def test_of_a_broken_call_nothing_is_lost(name: str) -> None:
    response, dialect = response_of(name), DIALECTS[name]
    call = dialect.calls(PARIS).removeprefix(dialect.before_calls)
    for end in range(len(call)):
        text, reasoning, calls = read(response, call[:end])
        assert calls in ([], [PARIS])
        assert reasoning == ""
        if not calls:
            left = text.replace(" ", "").replace("\n", "")
            assert "".join(call[:end].split()).endswith(left)
            assert "Paris" not in call[:end] or "Paris" in left


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_form_that_is_not_known_is_not_guessed(name: str) -> None:
    derived = derive(template_of(name), bos_token="<s>", eos_token="</s>")
    assert derived.takes_tools
    assert derived.form.calls is None
