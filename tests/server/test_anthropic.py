"""`/v1/messages` through Anthropic's own client."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Literal

import pytest

from onnx_textgen import Model
from onnx_textgen.text.tokenizer import TextTokenizer
from support import patient_http
from support.chat_templates import THINKING
from support.live_server import served

if find_spec("anthropic") is None:
    pytest.skip("needs anthropic; pip install -e .[dev]", allow_module_level=True)

import anthropic

USER = [{"role": "user", "content": "Tell me of a dog."}]
CHAT = [{"role": "system", "content": "Be kind."}, *USER]
WEATHER = {
    "name": "get_weather",
    "description": "The weather.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Val d'Isère"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
    },
}


def client_of(url: str, **more: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, **{"api_key": "unused", "max_retries": 0, **more})


def answer_of(client: anthropic.Anthropic, *, streamed: bool, **asked: Any) -> anthropic.types.Message:
    """The answer, whole or put together from its stream."""
    if not streamed:
        return client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        return stream.get_final_message()


@pytest.fixture
def claude(live: tuple[str, Any]) -> Iterator[anthropic.Anthropic]:
    """Anthropic's own client."""
    with client_of(live[0]) as found:
        yield found


@pytest.fixture(scope="module")
def thinker(story: Model) -> Iterator[tuple[anthropic.Anthropic, Model]]:
    """A model that thinks, and its client."""
    model = Model(story.folder, story.manifest, story.graph, chat_template=THINKING)
    with served({"thinker": model}) as (url, _), client_of(url) as client:
        yield client, model


def test_an_answer_is_that_of_generate_whole_and_streamed(claude: anthropic.Anthropic, chatty: Model) -> None:
    expected = chatty.generate(chatty.encode_chat(CHAT), max_new_tokens=25, seed=4, ignore_eos=True)
    asked = {"model": "chatty", "system": "Be kind.", "messages": USER, "max_tokens": 25}
    asked |= {"extra_body": {"seed": 4, "ignore_eos": True}}
    found = claude.messages.create(**asked)
    assert [(block.type, block.text) for block in found.content] == [("text", expected.text)]
    assert (found.type, found.role, found.model, found.stop_reason) == ("message", "assistant", "chatty", "max_tokens")
    assert found.usage.input_tokens + found.usage.cache_read_input_tokens == len(expected.prompt_ids)
    assert found.usage.output_tokens == 25
    with claude.messages.stream(**asked) as stream:
        events = list(stream)
        last = stream.get_final_message()
    names = [event.type for event in events if event.type not in ("text", "content_block_delta")]
    assert names == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    assert "".join(event.text for event in events if event.type == "text") == expected.text
    assert last.content[0].text == expected.text
    assert (last.stop_reason, last.usage.output_tokens) == ("max_tokens", 25)
    assert last.usage.input_tokens + last.usage.cache_read_input_tokens == len(expected.prompt_ids)


def test_every_line_of_a_stream_names_its_event(live: tuple) -> None:
    asked = {"model": "chatty", "messages": USER, "max_tokens": 3, "stream": True, "seed": 1}
    answer = patient_http.post(f"{live[0]}/v1/messages", json=asked)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [each.split("\n") for each in answer.text.split("\n\n") if each]
    for name, data in events:
        assert json.loads(data.removeprefix("data: "))["type"] == name.removeprefix("event: ")
    assert [name for name, _ in events][:2] == ["event: message_start", "event: ping"]
    assert "[DONE]" not in answer.text


def test_system_and_messages_may_be_blocks_and_turns_are_joined(claude: anthropic.Anthropic, chatty: Model) -> None:
    blocks = [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]
    said = [
        {"role": "user", "content": [{"type": "text", "text": "Tell me"}, {"type": "text", "text": "of a dog."}]},
        {"role": "user", "content": "Now."},
    ]
    count = claude.messages.count_tokens(model="chatty", system=blocks, messages=said).input_tokens
    expected = [CHAT[0], {"role": "user", "content": "Tell me\nof a dog.\nNow."}]
    assert count == len(chatty.encode_chat(expected))


def test_a_beginning_of_the_answer_is_continued(claude: anthropic.Anthropic, chatty: Model) -> None:
    begun = [*USER, {"role": "assistant", "content": "The dog ran to"}]
    ids = chatty.encode_chat(begun, continue_final_message=True)
    found = claude.messages.create(model="chatty", messages=begun, max_tokens=8, extra_body={"temperature": 0})
    assert found.content[0].text == chatty.generate(ids, temperature=0, max_new_tokens=8).text


def test_a_stop_sequence_is_named(claude: anthropic.Anthropic) -> None:
    asked = {"model": "chatty", "messages": USER, "max_tokens": 60, "extra_body": {"temperature": 0}}
    word = claude.messages.create(**asked).content[0].text.split()[4]
    for streamed in (False, True):
        found = answer_of(claude, streamed=streamed, **asked, stop_sequences=["Wibberflick", word])
        assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", word)
        assert word not in found.content[0].text


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_is_called_and_its_result_is_taken(claude: anthropic.Anthropic, choice: dict, streamed: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    pytest.importorskip("llguidance")
    asked = {"model": "chatty", "max_tokens": 200, "tools": [WEATHER], "extra_body": {"temperature": 0}}
    found = answer_of(claude, streamed=streamed, **asked, messages=USER, tool_choice=choice)
    assert found.stop_reason == "tool_use"
    call = found.content[-1]
    assert (call.type, call.name) == ("tool_use", "get_weather")
    jsonschema.validate(call.input, WEATHER["input_schema"])
    if "disable_parallel_tool_use" in choice:
        assert len(found.content) == 1
    rain = [{"type": "text", "text": "Rain."}]
    results = [{"type": "tool_result", "tool_use_id": each.id, "content": rain} for each in found.content]
    said = [
        {"role": "assistant", "content": found.content},
        {"role": "user", "content": [*results, {"type": "text", "text": "So?"}]},
    ]
    answer = claude.messages.create(**asked, messages=[*USER, *said], tool_choice={"type": "none"})
    assert {block.type for block in answer.content} == {"text"}
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens > 20


def test_a_call_that_is_cut_off_is_a_block_with_no_whole_input(claude: anthropic.Anthropic) -> None:
    pytest.importorskip("llguidance")
    asked = {"model": "chatty", "tools": [WEATHER], "tool_choice": {"type": "any"}, "extra_body": {"temperature": 0}}
    for tokens in range(1, 200):  # until the call has begun
        found = claude.messages.create(**asked, max_tokens=tokens, messages=USER)
        if found.content and found.content[-1].type == "tool_use":
            break
    assert (found.stop_reason, found.content[-1].name, found.content[-1].input) == ("max_tokens", "get_weather", {})
    events = claude.messages.create(**asked, max_tokens=tokens, messages=USER, stream=True)
    told = [event.content_block.name for event in events if event.type == "content_block_start"]
    assert told == [block.name for block in found.content]
    more = [{"role": "assistant", "content": found.content}, *USER]
    assert claude.messages.create(**asked, max_tokens=2, messages=[*USER, *more]).usage


def test_calls_and_results_are_written_as_the_template_writes_them(claude: anthropic.Anthropic, chatty: Model) -> None:
    call = {"type": "tool_use", "id": "abc123def", "name": "get_weather", "input": {"city": "Oslo", "days": 2}}
    turns = [
        *USER,
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "abc123def", "content": "Rain."}]},
    ]
    function = {"name": "get_weather", "arguments": '{"city": "Oslo", "days": 2}'}
    chat = [
        *USER,
        {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "abc123def", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "abc123def", "name": "get_weather", "content": "Rain."},
    ]
    tool = {"name": "get_weather", "description": "The weather.", "parameters": WEATHER["input_schema"]}
    expected = chatty.encode_chat(chat, tools=[{"type": "function", "function": tool}])
    assert claude.messages.count_tokens(model="chatty", messages=turns, tools=[WEATHER]).input_tokens == len(expected)


@pytest.mark.parametrize("streamed", [False, True])
def test_thinking_is_a_block_if_it_is_asked_for(thinker: tuple, streamed: bool) -> None:
    client, _ = thinker
    extra = {"seed": 3, "chat_template_kwargs": {"begins": True}}
    asked = {"model": "thinker", "messages": USER, "max_tokens": 40, "extra_body": extra}
    found = answer_of(client, streamed=streamed, **asked, thinking={"type": "enabled", "budget_tokens": 5})
    assert [block.type for block in found.content] == ["thinking", "text"]
    assert found.content[0].thinking
    assert len(found.content[0].signature) == 64
    assert 0 < found.usage.output_tokens_details.thinking_tokens <= 6
    hidden = answer_of(client, streamed=streamed, **asked, thinking={"type": "enabled", "budget_tokens": 5, "display": "omitted"})
    assert (hidden.content[0].thinking, hidden.content[0].signature) == ("", found.content[0].signature)
    assert hidden.content[1].text == found.content[1].text


def test_a_model_does_not_think_unless_it_is_asked_to(thinker: tuple) -> None:
    client, model = thinker
    ids = {value: model.encode_chat(USER, chat_template_kwargs={"enable_thinking": value}) for value in (True, False)}
    assert len(ids[True]) != len(ids[False])
    for thinking, enabled in ((None, False), ({"type": "disabled"}, False), ({"type": "adaptive"}, True)):
        more = {} if thinking is None else {"thinking": thinking}
        assert client.messages.count_tokens(model="thinker", messages=USER, **more).input_tokens == len(ids[enabled])


def test_thinking_of_earlier_answers_reaches_the_template(thinker: tuple) -> None:
    client, model = thinker
    blocks = [
        {"type": "thinking", "thinking": "A dog!", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "Yes."},
    ]
    turns = [*USER, {"role": "assistant", "content": blocks}, USER[0]]
    chat = [*USER, {"role": "assistant", "content": "Yes.", "reasoning_content": "A dog!"}, USER[0]]
    found = client.messages.count_tokens(model="thinker", messages=turns, thinking={"type": "adaptive"}).input_tokens
    assert found == len(model.encode_chat(chat, chat_template_kwargs={"enable_thinking": True}))


def test_an_answer_follows_a_schema(claude: anthropic.Anthropic) -> None:
    pydantic = pytest.importorskip("pydantic")
    pytest.importorskip("llguidance")
    animal = pydantic.create_model("Animal", kind=(Literal["cat", "dog"], ...), is_small=(bool, ...))
    found = claude.messages.parse(model="chatty", messages=USER, max_tokens=80, output_format=animal)
    assert isinstance(found.parsed_output, animal)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"messages": []}, "messages: should be a list of at least 1, found a list"),
        ({"max_tokens": 0}, "max_tokens: should be at least 1, found 0"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "the models here read text, found a part of the type 'image'",
        ),
        ({"messages": [{"role": "user", "content": [5]}]}, "a part should be {"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages.0.role: "),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}]},
            "input: it should be given",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]},
            "the messages end with a tool_use",
        ),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "any"}},
            "tool_choice 'required' needs tools",
        ),
        ({"tool_choice": {"type": "any"}}, "tool_choice 'required' needs tools"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "f"}},
            "tool_choice should be auto, none, required or one",
        ),
        ({"extra_body": {"temperature": -1}}, "temperature should be"),
        ({"extra_body": {"stop": "a"}}, "stop is called stop_sequences here"),
        ({"extra_body": {"n": 2}}, "there is no parameter 'n' here"),
        ({"model": "story"}, "story has no chat template; POST a plain text to /v1/completions"),
    ],
)
def test_what_cannot_be_answered_is_said(claude: anthropic.Anthropic, asked: dict, said: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(**{"model": "chatty", "messages": USER, "max_tokens": 4, **asked})
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert said in caught.value.body["error"]["message"]


def test_what_changes_no_text_is_passed_over(claude: anthropic.Anthropic) -> None:
    asked = {"model": "chatty", "messages": USER, "max_tokens": 4}
    extra = {"temperature": 0, "context_management": {"edits": []}, "cache_control": {"type": "ephemeral"}, "top_k": -1}
    more = {"metadata": {"user_id": "a"}, "service_tier": "auto", "thinking": {"type": "adaptive"}, "extra_body": extra}
    plain = claude.messages.create(**asked, extra_body={"temperature": 0})
    assert claude.messages.create(**asked, **more).content == plain.content


def test_problems_have_the_types_that_the_client_knows(story: Model, chatty: Model) -> None:
    with served({"chatty": chatty}, api_key="secret", max_body_bytes=3000) as (url, _):
        asked = {"model": "chatty", "messages": USER, "max_tokens": 2}
        for given in ({"api_key": "secret"}, {"api_key": None, "auth_token": "secret"}):
            with client_of(url, **given) as client:
                assert client.messages.create(**asked).content
        with client_of(url, api_key="wrong") as client, pytest.raises(anthropic.AuthenticationError, match="authentication_error"):
            client.messages.create(**asked)
        with client_of(url, api_key="secret") as client:
            with pytest.raises(anthropic.NotFoundError, match="there is no model 'other' here") as caught:
                client.messages.create(**asked | {"model": "other"})
            assert caught.value.body["error"]["type"] == "not_found_error"
            with pytest.raises(anthropic.RequestTooLargeError, match="request_too_large"):
                client.messages.create(**asked, system="a" * 4000)
        answer = patient_http.get(f"{url}/v1/messages", headers={"x-api-key": "secret"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (405, "invalid_request_error")


def test_models_are_listed_in_pages_and_retrieved_as_this_client_reads_them(story: Model, chatty: Model) -> None:
    with served({"a": story, "b": chatty, "c": story}) as (url, _), client_of(url) as client:
        assert [each.id for each in client.models.list(limit=2)] == ["a", "b", "c"], "the client asks for the next page"
        page = client.models.list(limit=2)
        assert ([each.id for each in page.data], page.has_more, page.first_id, page.last_id) == (["a", "b"], True, "a", "b")
        page = client.models.list(before_id="c", limit=1)
        assert ([each.id for each in page.data], page.has_more) == (["b"], True)
        found = client.models.retrieve("b")
        assert (found.type, found.id, found.display_name, found.lifecycle) == ("model", "b", "b", "active")
        assert found.max_input_tokens == chatty.manifest.geometry.context_length
        assert abs(found.created_at.timestamp() - time.time()) < 3600
        with pytest.raises(anthropic.NotFoundError, match="there is no model 'd' here; choose one of: a, b, c"):
            client.models.retrieve("d")
        for wrong in ({"after_id": "d"}, {"limit": 0}, {"limit": 1001}):
            with pytest.raises(anthropic.BadRequestError) as caught:
                client.models.list(**wrong)
            assert caught.value.body["type"] == "error"  # type: ignore[call-overload, index]
        plain = patient_http.get(f"{url}/v1/models").json()
        assert (plain["object"], [each["id"] for each in plain["data"]]) == ("list", ["a", "b", "c"]), "of any other client"


def test_the_tokens_of_the_thinking_are_counted_in_a_thread(
    thinker: tuple[anthropic.Anthropic, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thought of thousands of tokens takes as long as one of them, in which the event loop would serve no other client."""
    encode, on_the_loop = TextTokenizer.encode, list[str]()

    def watched(self: TextTokenizer, text: str, **how: Any) -> list[int]:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            on_the_loop.append(text)
        return encode(self, text, **how)

    monkeypatch.setattr(TextTokenizer, "encode", watched)
    asked: dict[str, Any] = {"model": "thinker", "messages": USER, "max_tokens": 40}
    asked["extra_body"] = {"seed": 3, "chat_template_kwargs": {"begins": True}}
    found = thinker[0].messages.create(**asked, thinking={"type": "enabled", "budget_tokens": 5})
    assert found.usage.output_tokens_details is not None
    assert found.usage.output_tokens_details.thinking_tokens > 0
    assert on_the_loop == []
