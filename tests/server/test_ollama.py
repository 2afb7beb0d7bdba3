"""Ollama's routes through Ollama's own client."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.errors import PromptError
from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen_server.ollama.schema import ChatRequest, GenerateRequest
from support import patient_http
from support.chat_templates import THINKING
from support.infilling import make_infilling_folder
from support.live_server import served

if find_spec("ollama") is None:
    pytest.skip("needs ollama; pip install -e .[dev]", allow_module_level=True)

import ollama

USER = {"role": "user", "content": "Tell me of a dog."}
CHAT = [{"role": "system", "content": "Be kind."}, USER]
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Bergen"]}, "days": {"type": "integer", "enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": PLACE}}
OPTIONS = {"num_predict": 25, "seed": 4, "ignore_eos": True, "num_ctx": 4096, "repeat_penalty": 1.1}
OPTIONS |= {"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "typical_p": 1.0}  # clients send every default
OURS = {"max_new_tokens": 25, "seed": 4, "ignore_eos": True, "repetition_penalty": 1.1}


@pytest.fixture
def client(live: tuple[str, Any]) -> Iterator[ollama.Client]:
    """Ollama's own client."""
    with ollama.Client(live[0]) as found:
        yield found


@pytest.fixture(scope="module")
def thinker(story: Model) -> Iterator[tuple[ollama.Client, Model]]:
    """A model that thinks, and its client."""
    model = Model(story.folder, story.manifest, story.graph, chat_template=THINKING)
    with served({"thinker": model}) as (url, _), ollama.Client(url) as client:
        yield client, model


def check_counts(found: Any, expected: Any) -> None:
    assert (found.done, found.done_reason) == (True, "length")
    assert (found.prompt_eval_count, found.eval_count) == (len(expected.prompt_ids), 25)
    assert 0 < found.eval_duration < found.total_duration < 300 * 10**9
    assert found.prompt_eval_duration > 0
    assert found.created_at.endswith("Z")


@pytest.mark.parametrize("name", ["chatty", "chatty:latest"])
def test_an_answer_is_that_of_generate_whole_and_streamed(client: ollama.Client, chatty: Model, name: str) -> None:
    expected = chatty.generate(chatty.encode_chat(CHAT), **OURS)
    found = client.chat(name, CHAT, options=OPTIONS, keep_alive="5m")
    assert (found.message.role, found.message.content, found.model) == ("assistant", expected.text, "chatty")
    check_counts(found, expected)
    parts = list(client.chat(name, CHAT, options=OPTIONS, stream=True))
    assert "".join(part.message.content or "" for part in parts) == expected.text
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    check_counts(parts[-1], expected)


def test_generate_takes_a_prompt_by_the_template_or_itself(client: ollama.Client, chatty: Model, story: Model) -> None:
    ids = chatty.encode_chat(CHAT)
    expected = chatty.generate(ids, **OURS)
    found = client.generate("chatty", USER["content"], system="Be kind.", options=OPTIONS)
    assert found.response == expected.text
    check_counts(found, expected)
    for name, more in (("chatty", {"raw": True}), ("story", {})):
        expected = story.generate("Once upon a time", **OURS)
        found = client.generate(name, "Once upon a time", options=OPTIONS, **more)
        assert found.response == expected.text
        parts = list(client.generate(name, "Once upon a time", options=OPTIONS, stream=True, **more))
        assert "".join(part.response for part in parts) == expected.text
        check_counts(parts[-1], expected)


def test_a_stream_is_lines_of_json_and_the_default(live: tuple) -> None:
    answer = patient_http.post(f"{live[0]}/api/chat", json={"model": "chatty", "messages": [USER], "options": {"num_predict": 3}})
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["done"] for line in lines][-2:] == [False, True]


def test_a_stop_string_ends_a_text(client: ollama.Client) -> None:
    found = client.generate("story", "Once upon a time", options={"stop": ["."], "temperature": 0, "num_predict": -1})
    assert found.done_reason == "stop"
    assert "." not in found.response


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_its_result_is_taken(client: ollama.Client, chatty: Model, stream: bool) -> None:
    """A grammar makes the model call, because Ollama's clients cannot require a call."""
    pytest.importorskip("llguidance")
    model = Model(chatty.folder, chatty.manifest, chatty.graph, chat_template=chatty.chat_template)
    real = model.chats.turn
    model.chats.turn = lambda *given, **more: real(*given, tool_choice="required", parallel_tool_calls=False, **more)
    with served({"forced": model}) as (url, _), ollama.Client(url) as forced:
        asked: dict = {"tools": [WEATHER], "options": {"temperature": 0}, "stream": stream}
        parts = list(forced.chat("forced", [USER], **asked)) if stream else [forced.chat("forced", [USER], **asked)]
    calls = [each for part in parts for each in part.message.tool_calls or ()]
    assert [each.function.name for each in calls] == ["get_weather"]
    assert calls[0].function.arguments["city"] in ("Oslo", "Bergen")
    assert isinstance(calls[0].function.arguments["days"], int)
    assert parts[-1].done_reason == "stop"
    said = {"role": "assistant", "content": "", "tool_calls": [{"function": calls[0].function}]}
    answer = client.chat("chatty", [USER, said, {"role": "tool", "tool_name": "get_weather", "content": "Rain."}], options=OPTIONS)
    assert answer.message.content


def test_calls_and_results_are_written_as_the_template_writes_them(client: ollama.Client, chatty: Model) -> None:
    functions = [{"name": "get_weather", "arguments": {"city": city, "days": 2}} for city in ("Oslo", "Oslo")]
    turns = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [{"function": each} for each in functions]},
        {"role": "tool", "tool_name": "get_weather", "content": "Rain."},
        {"role": "tool", "tool_name": "get_weather", "content": "Snow."},
    ]
    ids = ["call00001", "call00002"]
    chat = [
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": call_id, "type": "function", "function": {**each, "arguments": json.dumps(each["arguments"])}}
                for call_id, each in zip(ids, functions, strict=True)
            ],
        },
        {"role": "tool", "tool_call_id": ids[0], "name": "get_weather", "content": "Rain."},
        {"role": "tool", "tool_call_id": ids[1], "name": "get_weather", "content": "Snow."},
    ]
    found = client.chat("chatty", turns, options={"num_predict": 1})
    assert found.prompt_eval_count == len(chatty.encode_chat(chat))


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_told_apart(thinker: tuple, stream: bool) -> None:
    client, model = thinker
    begun = [USER, {"role": "assistant", "content": "x", "thinking": "A dog!"}, USER]
    ids = {
        think: model.encode_chat(
            [USER, {"role": "assistant", "content": "x", "reasoning_content": "A dog!"}, USER],
            chat_template_kwargs={"enable_thinking": think},
        )
        for think in (True, False)
    }
    for think in (True, False):
        parts = client.chat("thinker", begun, think=think, options={"num_predict": 4, "seed": 1}, stream=True)
        assert list(parts)[-1].prompt_eval_count == len(ids[think])
    options = {"num_predict": 300, "regex": "never", "temperature": 0}
    pytest.importorskip("llguidance")
    real, begins = model.chats.turn, {"chat_template_kwargs": {"begins": True}, "thinking_budget": 9}
    model.chats.turn = lambda *given, **more: real(*given, **more | begins)
    try:
        found = client.chat("thinker", [USER], think=True, options=options, stream=stream)
        parts = list(found) if stream else [found]
    finally:
        model.chats.turn = real
    assert "".join(part.message.content or "" for part in parts) == "never"
    assert "".join(part.message.thinking or "" for part in parts)


def test_an_answer_follows_a_schema(client: ollama.Client) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    pytest.importorskip("llguidance")
    found = client.chat("chatty", [USER], format=PLACE, options={"seed": 3})
    jsonschema.validate(json.loads(found.message.content or ""), PLACE)
    free = client.generate("story", "JSON: ", format="json", options={"seed": 3, "num_predict": 5})
    assert free.response.startswith("{")


def test_a_suffix_is_taken_by_models_for_it(client: ollama.Client, story: Model, tmp_path) -> None:
    make_infilling_folder(story.folder, tmp_path / "story")
    model = onnx_textgen.load(tmp_path / "story", threads=1, device="cpu")
    expected = model.generate(model.encode_infill("A dog", "The end."), **OURS)
    with served({"infilling": model}) as (url, _), ollama.Client(url) as own:
        assert own.generate("infilling", "A dog", suffix="The end.", options=OPTIONS).response == expected.text
        assert own.show("infilling").capabilities == ["completion", "insert"]
    with pytest.raises(ollama.ResponseError, match="story has no control tokens for a suffix"):
        client.generate("story", "A dog", suffix="The end.")


def test_models_are_listed_and_shown(client: ollama.Client, thinker: tuple, story: Model) -> None:
    assert [each.model for each in client.list().models] == ["story", "chatty"]
    assert [each.context_length for each in client.ps().models] == [512, 512]
    files = story.manifest.files.values()
    for listed in (client.list().models[0], client.ps().models[0]):
        assert (listed.size, listed.digest) == (sum(each.size for each in files), story.manifest.sha256)
    assert sum((story.folder / name).stat().st_size for name in story.manifest.files) == client.list().models[0].size
    assert len(story.manifest.sha256) == 64
    shown = client.show("chatty:latest")
    assert shown.details is not None
    assert (shown.details.format, shown.details.quantization_level) == ("onnx", "int8")
    assert (shown.modelinfo or {})["onnx.context_length"] == 512
    assert shown.capabilities == ["completion", "tools"]
    assert "messages" in (shown.template or "")
    assert thinker[0].show("thinker").capabilities == ["completion", "tools", "thinking"]
    silent = "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    with (
        served({"silent": Model(story.folder, story.manifest, story.graph, chat_template=silent)}) as (url, _),
        ollama.Client(url) as own,
    ):
        assert own.show("silent").capabilities == ["completion"], "nobody knows how it writes calls"
    with pytest.raises(ollama.ResponseError, match="there is no model 'other' here") as caught:
        client.show("other")
    assert caught.value.status_code == 404


def test_a_request_for_nothing_loads_or_unloads(client: ollama.Client, live: tuple) -> None:
    assert client.generate("story").done_reason == "load"
    assert client.chat("chatty", [], keep_alive=0).done_reason == "unload"
    assert patient_http.get(f"{live[0]}/api/version").json() == {"version": onnx_textgen.__version__}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"messages": [{**USER, "images": ["aGVsbG8="]}]},
            "the models here read text, found a part of the type 'image'; leave it out",
        ),
        (
            {"messages": [{"role": "robot", "content": "a"}]},
            "messages.0.role: should be 'user', 'assistant', 'system' or 'tool', found 'robot'",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "name: it should be given"),
        ({"options": {"max_new_tokens": 5}}, "max_new_tokens is called num_predict here"),
        ({"options": {"num_predict": "a"}}, "num_predict should be a whole number, found 'a'"),
        ({"options": {"num_predict": 0}}, "max_new_tokens should be"),
        ({"options": {"tempreature": 1}}, "there is no parameter 'tempreature' here"),
        ({"options": {"temperature": -1}}, "temperature should be"),
        ({"options": {"mirostat": 2}}, "there is no parameter 'mirostat' here; leave it out"),
        ({"think": True}, "chatty does not think; leave think out"),
        ({"logprobs": True}, "logprobs: "),
        ({"format": "xml"}, "format: "),
        ({"tools": [{"type": "function"}]}, "a tool should have a name"),
        ({"model": "story"}, "story has no chat template"),
    ],
)
def test_what_cannot_be_answered_is_said(live: tuple, asked: dict, said: str) -> None:
    answer = patient_http.post(f"{live[0]}/api/chat", json={"model": "chatty", "messages": [USER], **asked})
    assert (answer.status_code, [*answer.json()]) == (400, ["error"])
    assert said in answer.json()["error"]


def test_what_generate_cannot_take_is_said(live: tuple) -> None:
    told = "context: conversations are continued by /api/chat"
    for asked, said in (({"context": [1, 2]}, told), ({"template": "x"}, "template")):
        answer = patient_http.post(f"{live[0]}/api/generate", json={"model": "story", "prompt": "A", **asked})
        assert (answer.status_code, said in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    "asked",
    [
        *({"keep_alive": value} for value in ("5m", "1h30m", "-1", -1, 0, 0.5, "-1m", None)),
        *({"think": value} for value in (False, "false", "none", None)),
        *({"format": value} for value in ("", None, {})),
        *({name: value} for name in ("truncate", "shift", "logprobs") for value in (False, None)),
        {"truncate": True, "shift": True, "top_logprobs": 0},
        {
            "options": {
                "mirostat": 0,
                "mirostat_eta": 0.1,
                "mirostat_tau": 5,
                "top_p": 0,
                "num_predict": 4.0,
                "seed": 1.0,
                "stop": [],
            }
        },
        {"template": "", "context": [], "images": [], "suffix": "", "system": "", "raw": False},
    ],
)
def test_fields_that_ask_for_nothing_special_are_taken(asked: dict) -> None:
    body = GenerateRequest.model_validate({"prompt": "A", **asked})
    assert GenerationConfig(**body.options_of_call(100)).max_new_tokens in (100, 4)
    body.thinking_inputs("story", thinks=False)
    ChatRequest.model_validate({key: value for key, value in asked.items() if key not in GENERATE_ONLY})


GENERATE_ONLY = ("template", "context", "images", "suffix", "system", "raw")


@pytest.mark.parametrize(
    ("think", "budget"), [("minimal", 256), ("low", 1024), ("high", None), ("none", 0), (True, None), (False, 0)]
)
def test_every_form_of_think_is_taken(think: object, budget: int | None) -> None:
    assert ChatRequest.model_validate({"think": think}).thinking_inputs("a", thinks=True)["thinking_budget"] == budget


def test_the_oldest_messages_of_a_long_chat_are_left_out(client: ollama.Client, chatty: Model) -> None:
    turns = [{"role": role, "content": f"{number} dogs. " * 8} for number in range(40) for role in ("user", "assistant")]
    later = {"role": "system", "content": "Be brief."}
    chat, options = [CHAT[0], *turns, later, USER], {"num_predict": 8, "temperature": 0}
    found = client.chat("chatty", chat, options=options)
    fitting = [
        ids
        for start in range(len(turns))
        if (ids := encoded(chatty, [CHAT[0], *turns[start:], later, USER])) is not None and len(ids) + 8 <= 512
    ]
    assert (found.prompt_eval_count, found.done_reason) == (len(fitting[0]), "length")
    assert found.message.content == chatty.generate(fitting[0], max_new_tokens=8, temperature=0).text
    asked = {"model": "chatty", "messages": chat, "truncate": False}
    refused = patient_http.post(f"{client._client.base_url}/api/chat", json=asked)
    assert (refused.status_code, "Shorten it" in refused.json()["error"]) == (400, True)
    with pytest.raises(ollama.ResponseError, match="Shorten it"):
        client.chat("chatty", [CHAT[0], {"role": "user", "content": "A dog. " * 400}])


def encoded(model: Model, chat: list[dict[str, str]]) -> list[int] | None:
    """The prompt, or None for one that is too long."""
    try:
        return model.encode_chat(chat)
    except PromptError:
        return None


def test_a_system_message_beside_the_messages_comes_first(live: tuple[str, Any]) -> None:
    def post(**more: object) -> dict[str, Any]:
        asked = {"model": "chatty", "stream": False, "options": {"num_predict": 8, "temperature": 0}}
        answer: dict[str, Any] = patient_http.post(f"{live[0]}/api/chat", json=asked | more).json()
        return answer

    found, expected = post(messages=[USER], system=CHAT[0]["content"]), post(messages=CHAT)
    assert (found["message"], found["prompt_eval_count"]) == (expected["message"], expected["prompt_eval_count"])
