"""A model whose marks are added tokens that are not special, as those of Qwen, calls tools whatever it prefers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import onnx_textgen
from onnx_textgen import Model
from support.added_tokens import with_added_tokens
from support.calling_model import saying

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")

MESSAGES = [{"role": "user", "content": "Is it raining in Oslo?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}, "required": ["city"]}
TOOLS = [{"name": "look", "parameters": CITY}, {"name": "stop", "parameters": {"type": "object", "additionalProperties": False}}]
SCHEMAS = {tool["name"]: tool["parameters"] for tool in TOOLS}
HEAD = "{{ tools | tojson if tools }}{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}"
TAIL = "</end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
OBJECTS = "{% for c in m.tool_calls or [] %}\n<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
TAGS = (
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n"
    "{% endfor %}</function>\n</tool_call>{% endfor %}"
)
THINKS = "<assistant><think>\n{% if enable_thinking is false %}</think>{% endif %}"
TEMPLATES = {
    "objects": HEAD + OBJECTS + TAIL,
    "tags": HEAD + TAGS + TAIL,
    "thinking": HEAD + OBJECTS + TAIL.replace("<assistant>", THINKS),
}
MARKS = {
    "all marks": ["<tool_call>", "</tool_call>", "<think>", "</think>", "\n\n"],
    "a mark and parts of others": ["</tool_call>", "<tool", "think>", "\n<"],
    "none": [],
}
CALL = {
    "tags": "<tool_call>\n<function=look>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
    "objects": '<tool_call>\n{"name": "look", "arguments": {"city": "Oslo"}}\n</tool_call>',
}


@pytest.fixture(scope="module", params=list(itertools.product(TEMPLATES, MARKS)), ids=" with ".join)
def model(request: pytest.FixtureRequest) -> Model:
    story = onnx_textgen.load(threads=1, device="cpu")
    template, marks = request.param
    tokenizer = with_added_tokens(MARKS[marks])
    return Model(story.folder, story.manifest, story.graph, chat_template=TEMPLATES[template], tokenizer=tokenizer)


def preferring(model: Model, seed: int) -> Any:
    """Random logits, in which ends are likely: those of values and calls wherever they stand, in each text another one most."""
    draw, tokenizer = np.random.default_rng(seed), model.tokenizer
    ends = [tokenizer.encode(each, add_special_tokens=False) for each in ("\n</parameter>\n", "</tool_call>", "</think>", '"', "}")]

    def processor(token_ids: list[int], logits: Any) -> Any:
        scores = draw.normal(size=logits.size).astype(np.float32)
        scores[list(tokenizer.eos_ids)] += 6
        for number, end in enumerate(ends):
            scores[end[0]] += 4
            for size in range(1, len(end)):
                scores[end[size]] += (16 if number == seed else 8) * (token_ids[-size:] == end[:size])
        return scores

    return processor


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "look"}}], ids=str)
def test_an_answer_is_whole_calls_or_text_whatever_the_model_prefers(model: Model, choice: Any) -> None:
    whole = 0
    for seed in range(3):
        asked: dict[str, Any] = {"tool_choice": choice, "parallel_tool_calls": seed == 1, "max_new_tokens": 160, "temperature": 0}
        chunks = list(model.stream_chat(MESSAGES, tools=TOOLS, **asked, logits_processor=preferring(model, seed)))
        answer, streamed = chunks[-1].answer, dict[int, str]()
        assert answer is not None
        for part in (part for chunk in chunks for part in chunk.tool_calls):
            streamed[part.index] = streamed.get(part.index, "") + part.arguments
        calls = [*answer.tool_calls, *([] if answer.cut_call is None else [answer.cut_call])]
        assert list(streamed.values()) == [call.arguments_json for call in calls]
        assert "".join(chunk.text for chunk in chunks) == answer.text
        for call in answer.tool_calls:
            jsonschema.validate(call.arguments, SCHEMAS[call.name])
        if answer.generation.finish_reason != "length":
            assert answer.cut_call is None
            assert choice == "auto" or (answer.tool_calls and answer.generation.follows_rule)
            whole += 1
    assert whole, "of three answers at least one is whole"


def test_a_call_that_the_model_writes_by_itself_is_read(model: Model) -> None:
    said = CALL["tags" if "<function" in str(model.chat_template) else "objects"]
    text = f"Hm.</think>I look.\n{said}" if "<think>" in str(model.chat_template) else f"I look.\n{said}"
    answer = model.chat(MESSAGES, tools=TOOLS, logits_processor=saying(model, text), temperature=0, max_new_tokens=200)
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("look", {"city": "Oslo"})]
    assert (answer.text, answer.finish_reason) == ("I look.", "tool_calls")
