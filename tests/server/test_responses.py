"""`/v1/responses` through OpenAI's own client."""

import itertools
import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pytest

from onnx_textgen import Model
from onnx_textgen_server.openai.responses import store
from support import patient_http
from support.chat_templates import THINKING
from support.live_server import served

USER = {"role": "user", "content": "Tell me of a dog."}
CHAT = [{"role": "system", "content": "Be kind."}, USER]
PLACE = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Val d'Isère"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "name": "get_weather", "description": "The weather.", "parameters": PLACE, "strict": True}
MORE = {"seed": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def thinker(story: Model) -> Iterator[tuple[openai.OpenAI, Model]]:
    """A model that thinks, and its client."""
    model = Model(story.folder, story.manifest, story.graph, chat_template=THINKING)
    with served({"thinker": model}) as (url, _), openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        yield client, model


def test_an_answer_is_that_of_generate_whole_and_streamed(client: openai.OpenAI, chatty: Model) -> None:
    asked: dict = {"model": "chatty", "instructions": "Be kind.", "input": USER["content"], "max_output_tokens": 25}
    asked |= {"extra_body": MORE, "temperature": 1.0, "metadata": {"a": "b"}}
    expected = chatty.generate(chatty.encode_chat(CHAT), max_new_tokens=25, temperature=1.0, **MORE)
    found = client.responses.create(**asked)
    assert found.output_text == expected.text
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (found.usage.input_tokens, found.usage.output_tokens) == (len(expected.prompt_ids), 25)
    assert (found.model, found.instructions, found.temperature, found.metadata) == ("chatty", "Be kind.", 1.0, {"a": "b"})
    events = list(client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [name for name, _ in itertools.groupby(event.type.removeprefix("response.") for event in events)] == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "incomplete"),
    ]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == expected.text
    last = events[-1].response
    assert last.output_text == expected.text
    assert last.usage.output_tokens == 25
    assert events[0].response.output == []
    assert events[0].response.status == "in_progress"


def test_a_stream_is_read_by_the_clients_own_helper(client: openai.OpenAI) -> None:
    asked: dict = {"model": "chatty", "input": [USER], "temperature": 0, "extra_body": {"stop": "."}}
    with client.responses.stream(**asked) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        last = stream.get_final_response()
    assert last.status == "completed"
    assert last.output_text == text == client.responses.create(**asked).output_text


def test_every_line_of_a_stream_names_its_event(live: tuple) -> None:
    asked = {"model": "chatty", "input": "A dog.", "max_output_tokens": 3, "stream": True, "seed": 1}
    text = patient_http.post(f"{live[0]}/v1/responses", json=asked).text
    for name, data in (each.split("\n") for each in text.split("\n\n") if each):
        assert json.loads(data.removeprefix("data: "))["type"] == name.removeprefix("event: ")


def test_a_conversation_is_continued_by_the_id_of_its_last_response(client: openai.OpenAI, chatty: Model) -> None:
    asked: dict = {"model": "chatty", "temperature": 0, "max_output_tokens": 12}
    first = client.responses.create(**asked, instructions="Be kind.", input=[USER])
    second = client.responses.create(**asked, input="And a cat.", previous_response_id=first.id)
    chat = [USER, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "And a cat."}]
    expected = chatty.generate(chatty.encode_chat(chat), max_new_tokens=12, temperature=0)
    assert second.output_text == expected.text
    assert second.previous_response_id == first.id
    again = client.responses.create(**asked, input="And a cat.", previous_response_id=first.id)
    assert again.output_text == second.output_text
    whole = client.responses.create(**asked, input=[USER, *first.output, {"role": "user", "content": "And a cat."}], store=False)
    assert whole.output_text == second.output_text
    third = client.responses.create(**asked, input="Now.", previous_response_id=second.id)
    chat += [{"role": "assistant", "content": second.output_text}, {"role": "user", "content": "Now."}]
    assert third.usage.input_tokens == len(chatty.encode_chat(chat))


def test_responses_are_kept_until_they_are_deleted_or_too_many(chatty: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_RESPONSES", 2)
    with served({"chatty": chatty}) as (url, _), openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        asked: dict = {"model": "chatty", "input": "A dog.", "max_output_tokens": 2}
        first, second = (client.responses.create(**asked) for _ in range(2))
        assert client.responses.retrieve(first.id).output_text == first.output_text
        third = client.responses.create(**asked, stream=True)
        third_id = list(third)[-1].response.id
        for gone in (second.id, "resp_none", client.responses.create(**asked, store=False).id):
            for ask in (
                lambda gone=gone: client.responses.retrieve(gone),
                lambda gone=gone: client.responses.create(**asked, previous_response_id=gone),
                lambda gone=gone: client.responses.delete(gone),
            ):
                with pytest.raises(openai.NotFoundError, match="send the whole conversation as input"):
                    ask()
        for kept in (first.id, third_id):
            client.responses.delete(kept)
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(kept)


def test_long_conversations_take_the_place_of_several() -> None:
    kept = store.Store()
    for number in range(40):
        kept.add({"id": str(number)}, [{"role": "user", "content": "a" * (store.MAX_BYTES // 10)}])
    assert [*kept.kept] == [str(number) for number in range(31, 40)]
    kept.add({"id": "large"}, [{"role": "user", "content": "a" * store.MAX_BYTES}])
    assert (len(kept.kept), kept.size_bytes) == (0, 0)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_function_is_called_and_its_result_is_taken(client: openai.OpenAI, choice: Any, streamed: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    pytest.importorskip("llguidance")
    asked: dict = {"model": "chatty", "tools": [WEATHER], "temperature": 0, "parallel_tool_calls": False}
    if streamed:
        with client.responses.stream(**asked, input=[USER], tool_choice=choice) as stream:
            events = list(stream)
            found = stream.get_final_response()
        deltas = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
        assert deltas == found.output[0].arguments
        names = [event.type for event in events if "arguments" not in event.type]
        assert names[2:] == ["response.output_item.added", "response.output_item.done", "response.completed"]
    else:
        found = client.responses.create(**asked, input=[USER], tool_choice=choice)
    (call,) = found.output
    assert (found.status, call.type, call.name, call.status) == ("completed", "function_call", "get_weather", "completed")
    jsonschema.validate(json.loads(call.arguments), PLACE)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    by_id = client.responses.create(**asked, input=[result], previous_response_id=found.id, tool_choice="none")
    by_items = client.responses.create(**asked, input=[USER, call, result], tool_choice="none")
    assert by_id.output_text == by_items.output_text
    assert by_id.usage.input_tokens == by_items.usage.input_tokens


def test_items_are_written_as_the_messages_of_a_chat(client: openai.OpenAI, chatty: Model) -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
        USER,
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "abc123def", "name": "get_weather", "arguments": '{"city": "Oslo", "days": 2}'},
        {"type": "function_call_output", "call_id": "abc123def", "output": [{"type": "input_text", "text": "Rain."}]},
    ]
    function = {"name": "get_weather", "arguments": '{"city": "Oslo", "days": 2}'}
    chat = [
        *CHAT,
        {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "abc123def", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "abc123def", "name": "get_weather", "content": "Rain."},
    ]
    found = client.responses.create(model="chatty", input=items, max_output_tokens=1, temperature=0)  # type: ignore[arg-type]
    assert found.usage is not None
    assert found.usage.input_tokens == len(chatty.encode_chat(chat))


def test_only_allowed_tools_are_called(client: openai.OpenAI) -> None:
    pytest.importorskip("llguidance")
    tools = [WEATHER, {**WEATHER, "name": "get_time"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]}
    for seed in range(3):
        more: dict = {"tools": tools, "tool_choice": choice, "extra_body": {"seed": seed}}
        found = client.responses.create(model="chatty", input="A dog.", **more)
        assert {call.name for call in found.output} == {"get_time"}


@pytest.mark.parametrize("streamed", [False, True])
def test_thinking_is_an_item(thinker: tuple, streamed: bool) -> None:
    client, _ = thinker
    asked: dict = {"model": "thinker", "input": [USER], "max_output_tokens": 300, "temperature": 0}
    extra = {"ignore_eos": True, "chat_template_kwargs": {"begins": True}}
    asked |= {"reasoning": {"effort": "minimal"}, "extra_body": extra}
    if streamed:
        with client.responses.stream(**asked) as stream:
            events = list(stream)
        found = events[-1].response
        deltas = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
        assert deltas == found.output[0].content[0].text
        assert "response.reasoning_text.done" in {event.type for event in events}
    else:
        found = client.responses.create(**asked)
    assert [item.type for item in found.output] == ["reasoning", "message"]
    assert found.usage.output_tokens_details.reasoning_tokens > 200
    none = client.responses.create(**asked | {"reasoning": {"effort": "none"}, "max_output_tokens": 5})
    assert [item.type for item in none.output] == ["message"]


def test_thinking_of_earlier_answers_reaches_the_template(thinker: tuple) -> None:
    client, model = thinker
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "A dog!"}]}
    said = {"type": "message", "role": "assistant", "content": "Yes."}
    chat = [USER, {"role": "assistant", "content": "Yes.", "reasoning_content": "A dog!"}, USER]
    found = client.responses.create(model="thinker", input=[USER, thought, said, USER], max_output_tokens=1)
    assert found.usage.input_tokens == len(model.encode_chat(chat))
    assert found.usage.input_tokens > len(model.encode_chat([USER, {"role": "assistant", "content": "Yes."}, USER]))


def test_an_answer_follows_a_schema(client: openai.OpenAI) -> None:
    pydantic = pytest.importorskip("pydantic")
    pytest.importorskip("llguidance")
    animal = pydantic.create_model("Animal", kind=(Literal["cat", "dog"], ...), is_small=(bool, ...))
    found = client.responses.parse(model="chatty", input="A dog.", text_format=animal)
    assert isinstance(found.output_parsed, animal)
    free = client.responses.create(
        model="chatty", input="A dog.", text={"format": {"type": "json_object"}}, temperature=0, max_output_tokens=300
    )
    assert free.output_text.startswith("{")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "the models here read text, found a part of the type 'input_image'",
        ),
        ({"input": [5]}, "an item should be an object with a type, found 5"),
        (
            {"input": [{"role": "robot", "content": "a"}]},
            "role: should be 'user', 'assistant', 'system' or 'developer', found 'robot'",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "call_id: it should be given"),
        ({"tools": [{"type": "function"}]}, "a tool should be {"),
        ({"tool_choice": "required"}, "tool_choice 'required' needs tools"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, 'text.format of the type json_schema needs a "schema"'),
        ({"background": True}, "background: should be False, found True"),
        ({"truncation": "off"}, "truncation: should be 'auto' or 'disabled', found 'off'"),
        ({"include": ["message.output_text.logprobs"]}, "log-probabilities are not returned here"),
        ({"extra_body": {"max_tokens": 5}}, "max_tokens is called max_output_tokens here"),
        ({"extra_body": {"n": 2}}, "there is no parameter 'n' here"),
        ({"conversation": "conv_1"}, "there is no parameter 'conversation' here"),
        ({"temperature": -1}, "temperature should be"),
        ({"model": "story"}, "story has no chat template"),
    ],
)
def test_what_cannot_be_answered_is_said(client: openai.OpenAI, asked: dict, said: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": "chatty", "input": "A dog.", **asked})
    assert said in caught.value.body["message"]  # type: ignore[index]


def test_what_changes_no_text_is_passed_over(live: tuple) -> None:
    def post(**more: object) -> httpx.Response:
        return patient_http.post(f"{live[0]}/v1/responses", json={"input": "A dog.", "model": "chatty", "temperature": 0} | more)

    more = {"user": "a", "include": ["reasoning.encrypted_content"], "text": {"verbosity": "low"}, "prompt_cache_key": "a"}
    plain, found = (each.json()["output"][0]["content"] for each in (post(), post(**more, reasoning={"summary": "auto"}, top_k=-1)))
    assert plain == found


@pytest.mark.parametrize("reference", [{"type": "item_reference"}, {}])
def test_a_reference_takes_the_place_of_an_item_that_is_kept(client: openai.OpenAI, reference: dict[str, str]) -> None:
    asked: dict = {"model": "chatty", "max_output_tokens": 8, "temperature": 0}
    first = client.responses.create(**asked, input=[USER])
    (item,) = first.output
    later = [USER, {**reference, "id": item.id}, USER]
    found = client.responses.create(**asked, input=later)
    expected = client.responses.create(**asked, input=[USER, {"role": "assistant", "content": first.output_text}, USER])
    assert (found.usage.input_tokens, found.output_text) == (expected.usage.input_tokens, expected.output_text)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="its response is not kept"):
        client.responses.create(**asked, input=later)


def test_a_long_conversation_is_shortened_where_the_client_wants_it(client: openai.OpenAI) -> None:
    turns = [{"role": role, "content": f"{number} dogs. " * 8} for number in range(40) for role in ("user", "assistant")]
    asked: dict = {"model": "chatty", "input": [*turns, USER], "instructions": "Be kind.", "max_output_tokens": 8, "temperature": 0}
    with pytest.raises(openai.BadRequestError, match="Shorten it"):
        client.responses.create(**asked)
    found = client.responses.create(**asked, truncation="auto")
    assert found.truncation == "auto"
    assert 350 < found.usage.input_tokens <= 512 - 8, "as much as fits"
