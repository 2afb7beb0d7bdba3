"""Tool calls and thinking through OpenAI's client: whole, streamed, required, continued."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pydantic
import pytest

from onnx_textgen import Model
from support.live_server import served

pytest.importorskip("llguidance")

TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if enable_thinking is not defined or enable_thinking %}<think>"
    "{% endif %}{% endif %}"
)
MESSAGES: list[Any] = [{"role": "user", "content": "Is it raining in Oslo?"}]
BOOK = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "guests": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["name", "guests"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "book", "description": "Book a table.", "parameters": BOOK}},
    {"type": "function", "function": {"name": "stop"}},
]
CALLS = {"model": "caller", "messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
CALLS |= {"reasoning_effort": "none"}


@pytest.fixture(scope="module")
def caller(story: Model) -> Model:
    return Model(story.folder, story.manifest, story.graph, chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def client(caller: Model, chatty: Model) -> Iterator[openai.OpenAI]:
    with (
        served({"caller": caller, "chatty": chatty}) as (url, _),
        openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client,
    ):
        yield client


def parts_of(chunks: Any) -> tuple[dict[int, dict[str, Any]], list[Any]]:
    """Each streamed call by its index, and the chunks."""
    calls, every = dict[int, dict[str, Any]](), list(chunks)
    for part in (part for chunk in every for choice in chunk.choices for part in choice.delta.tool_calls or []):
        call = calls.setdefault(part.index, {"arguments": "", "parts": 0, "id": part.id, "name": part.function.name})
        assert call["id"], "the first part has an id"
        assert part.function.arguments or part.function.name, "no part is empty"
        call["arguments"] += part.function.arguments
        call["parts"] += 1
    return calls, every


@pytest.mark.parametrize("seed", range(4))
def test_a_required_call_fits_its_schema_whole_and_streamed(client: openai.OpenAI, seed: int) -> None:
    asked = {**CALLS, "seed": seed, "tool_choice": {"type": "function", "function": {"name": "book"}}}
    found = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    message = found.choices[0].message
    assert (found.choices[0].finish_reason, message.content) == ("tool_calls", None)
    assert [call.function.name for call in message.tool_calls] == ["book"]
    jsonschema.validate(json.loads(message.tool_calls[0].function.arguments), BOOK)
    calls, chunks = parts_of(client.chat.completions.create(**asked, stream=True))  # type: ignore[call-overload]
    assert calls[0]["name"] == "book"
    assert calls[0]["parts"] > 2, "arguments grow"
    assert calls[0]["arguments"] == message.tool_calls[0].function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("tokens", [30, 33])
def test_a_call_that_is_cut_off_is_the_same_whole_and_streamed_and_the_chat_goes_on(client: openai.OpenAI, tokens: int) -> None:
    asked = {**CALLS, "seed": 1, "tool_choice": {"type": "function", "function": {"name": "book"}}, "max_tokens": tokens}
    found = client.chat.completions.create(**asked).choices[0]  # type: ignore[call-overload]
    (call,) = found.message.tool_calls
    assert (found.finish_reason, found.message.content, call.function.name) == ("length", None, "book")
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        json.loads(call.function.arguments)
    calls, chunks = parts_of(client.chat.completions.create(**asked, stream=True))  # type: ignore[call-overload]
    assert [each["arguments"] for each in calls.values()] == [call.function.arguments]
    assert chunks[-1].choices[0].finish_reason == "length"
    answered = {"role": "tool", "tool_call_id": call.id, "content": "These arguments are no JSON."}
    for later in ([], [answered]):
        history = [*MESSAGES, found.message.model_dump(exclude_none=True), *later, *MESSAGES]
        assert client.chat.completions.create(model="caller", messages=history, tools=TOOLS, max_tokens=2).choices

    own = {"type": "function", **TOOLS[0]["function"]}
    responses = {"model": "caller", "input": "Is it raining in Oslo?", "tools": [own], "tool_choice": "required", "top_p": 1}
    responses |= {"reasoning": {"effort": "none"}, "max_output_tokens": tokens, "extra_body": {"seed": 1}}
    response = client.responses.create(**responses)  # type: ignore[call-overload]
    (item,) = response.output
    assert (response.status, item.status, item.name) == ("incomplete", "incomplete", "book")
    *_, last = client.responses.create(**responses, stream=True)  # type: ignore[call-overload]
    assert [each.arguments for each in last.response.output] == [item.arguments]
    again = {**responses, "previous_response_id": response.id}
    assert client.responses.create(**again).output  # type: ignore[call-overload]


def test_the_result_of_a_call_continues_the_chat(client: openai.OpenAI, caller: Model) -> None:
    answer = client.chat.completions.create(**CALLS).choices[0].message  # type: ignore[call-overload]
    result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "It is booked."}
    history = [*MESSAGES, answer.model_dump(exclude_none=True), result]
    found = client.chat.completions.create(model="caller", messages=history, tools=TOOLS, max_tokens=8, seed=1)
    assert found.usage is not None
    written = caller.tokenizer.decode(caller.encode_chat(history, tools=TOOLS))
    arguments = json.loads(answer.tool_calls[0].function.arguments)
    call = {"name": answer.tool_calls[0].function.name, "arguments": arguments}
    assert f"<call>{json.dumps(call, ensure_ascii=False)}</call>" in written
    assert "<tool>It is booked." in written
    assert found.usage.prompt_tokens == len(caller.encode_chat(history, tools=TOOLS))


def test_thinking_is_its_own_field_whole_and_streamed(client: openai.OpenAI) -> None:
    asked = {
        "model": "caller",
        "messages": MESSAGES,
        "max_tokens": 40,
        "seed": 3,
        "extra_body": {"thinking_budget": 6, "ignore_eos": True},
    }
    message = client.chat.completions.create(**asked).choices[0].message  # type: ignore[call-overload]
    assert message.reasoning_content
    assert message.reasoning == message.reasoning_content
    assert "think" not in message.content
    thought, said = "", ""
    for chunk in client.chat.completions.create(**asked, stream=True):  # type: ignore[call-overload]
        delta = chunk.choices[0].delta
        assert not (said and getattr(delta, "reasoning_content", None)), "thinking comes first"
        thought, said = thought + (getattr(delta, "reasoning_content", None) or ""), said + (delta.content or "")
    assert (thought, said) == (message.reasoning_content, message.content)


def test_an_effort_limits_the_thinking_and_means_nothing_to_a_model_that_does_not_think(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 20, "seed": 3}
    none = client.chat.completions.create(model="caller", reasoning_effort="none", **asked).choices[0].message
    assert not hasattr(none, "reasoning_content")
    plain = client.chat.completions.create(model="chatty", **asked)
    high = client.chat.completions.create(model="chatty", reasoning_effort="high", **asked)
    assert high.choices[0].message.content == plain.choices[0].message.content


class Answer(pydantic.BaseModel):
    rain: bool


def test_a_schema_holds_after_the_thinking(client: openai.OpenAI) -> None:
    found = client.chat.completions.parse(
        model="caller", messages=MESSAGES, response_format=Answer, max_tokens=60, seed=2, extra_body={"thinking_budget": 5}
    )
    assert isinstance(found.choices[0].message.parsed, Answer)
    assert found.choices[0].message.reasoning_content  # type: ignore[attr-defined]


def test_tools_that_must_not_be_called_are_not_shown_to_the_model(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "caller", "messages": MESSAGES, "max_tokens": 5, "seed": 1}
    plain = client.chat.completions.create(**asked)
    none = client.chat.completions.create(**asked, tools=TOOLS, tool_choice="none")
    assert none.usage is not None
    assert plain.usage is not None
    assert none.usage.prompt_tokens == plain.usage.prompt_tokens
    assert none.choices[0].message.content == plain.choices[0].message.content


@pytest.mark.parametrize(
    "wanted", [{"tool_choice": "required"}, {"tool_choice": {"type": "function", "function": {"name": "stop"}}}]
)
def test_a_call_in_a_form_that_is_not_known_is_refused_and_tools_without_a_choice_are_not(story: Model, wanted: Any) -> None:
    silent = Model(
        story.folder, story.manifest, story.graph, chat_template=TEMPLATE.replace("<call>{{ c.function | tojson }}</call>", "")
    )
    with served({"silent": silent}) as (url, _), openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        asked: Any = {"model": "silent", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 5}
        with pytest.raises(openai.BadRequestError, match="not the form of its calls; give a response template that reads them"):
            client.chat.completions.create(**asked, **wanted)
        message = client.chat.completions.create(**asked).choices[0].message
        assert message.tool_calls is None


def test_a_model_that_was_not_trained_to_call_is_told_how(client: openai.OpenAI, chatty: Model) -> None:
    stop = TOOLS[1:]
    found = client.chat.completions.create(model="chatty", messages=MESSAGES, tools=stop, tool_choice="required", seed=1)
    assert [call.function.name for call in found.choices[0].message.tool_calls or []] == ["stop"]
    assert "<tool_call>" in chatty.tokenizer.decode(chatty.encode_chat(MESSAGES, tools=stop))


@pytest.mark.parametrize("asked", ["auto", {"name": "book"}])
def test_a_function_of_openais_older_form_is_called_in_that_form(client: openai.OpenAI, asked: Any) -> None:
    more = {"seed": 1, "reasoning_effort": "none", "max_tokens": 60}
    today = {"tools": TOOLS, "tool_choice": asked if asked == "auto" else {"type": "function", "function": asked}}
    older = {"functions": [tool["function"] for tool in TOOLS], "function_call": asked}
    create: Any = client.chat.completions.create
    expected = create(model="caller", messages=MESSAGES, parallel_tool_calls=False, **more, **today).choices[0]
    found = create(model="caller", messages=MESSAGES, **more, **older).choices[0]
    assert found.message.tool_calls is None
    chunks = [each.choices[0] for each in create(model="caller", messages=MESSAGES, **more, **older, stream=True)]
    parts = [each.delta.function_call for each in chunks if each.delta.function_call is not None]
    if not expected.message.tool_calls:
        assert (found.message.content, parts, found.finish_reason) == (expected.message.content, [], expected.finish_reason)
        return
    called = expected.message.tool_calls[0].function
    assert (found.finish_reason, chunks[-1].finish_reason) == ("function_call",) * 2
    assert (found.message.function_call.name, found.message.function_call.arguments) == (called.name, called.arguments)
    assert [part.name for part in parts if part.name] == [called.name]
    assert "".join(part.arguments for part in parts) == called.arguments
    history = [*MESSAGES, found.message.model_dump(exclude_none=True), {"role": "function", "name": "book", "content": "Done."}]
    assert create(model="caller", messages=history, **more, **older).choices


def test_think_is_a_switch_of_thinking(client: openai.OpenAI) -> None:
    def tokens(**how: object) -> int:
        found = client.chat.completions.create(model="caller", messages=MESSAGES, max_tokens=1, extra_body=how)
        assert found.usage is not None
        return found.usage.prompt_tokens

    assert tokens(think=False) == tokens(reasoning_effort="none") < tokens() == tokens(think=True) == tokens(think="low")
