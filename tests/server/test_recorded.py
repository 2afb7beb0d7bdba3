"""What programs sent, with long texts cut: two turns of Codex CLI 0.171 and Claude Code 2.1, the second with the result of a call.

Each was pointed at a server that writes bodies down, by its recipe in docs/serving.md. So were LiteLLM, LangChain, aider, the
command line of Continue, and Ollama's client, called as Home Assistant calls it. Bodies of Open WebUI are what its functions make
of a chat. Those of Zed, and Continue's of past images and of infilling, are written by the types in their sources.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.answers.tools import read_tools
from onnx_textgen.chat.fitting import fitted
from onnx_textgen.chat.parts import readable
from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen.text.refused import RefusedError
from onnx_textgen_server.anthropic import conversion as anthropic
from onnx_textgen_server.anthropic.schema import CountRequest, MessagesRequest
from onnx_textgen_server.openai.responses import conversion as responses
from onnx_textgen_server.openai.responses.schema import ResponsesRequest
from support import patient_http
from support.live_server import served

from .conftest import TEMPLATE

FOLDER = Path(__file__).parent / "recorded"
PROGRAMS = {"codex": ["exec_command", "view_image"], "claude_code": ["Bash", "Read", "Write"]}
"""Each with the functions that it asks for."""
CLIENTS = json.loads((FOLDER / "clients.json").read_text(encoding="utf-8"))
"""Of each program: method, route and body of its requests."""
REQUESTS = [(program, place) for program, requests in CLIENTS.items() for place in range(len(requests))]
ENDS = {"stop", "length", "tool_calls", "function_call", "completed", "incomplete", "unload"}
MOST_TOKENS = 64
Chat = Sequence[Mapping[str, Any]]


@functools.cache
def request_of(program: str, turn: int) -> ResponsesRequest | MessagesRequest:
    body = json.loads((FOLDER / f"{program}_{turn}.json").read_text(encoding="utf-8"))
    return ResponsesRequest.model_validate(body) if program == "codex" else MessagesRequest.model_validate(body)


def chat_of(program: str, turn: int) -> Chat:
    body = request_of(program, turn)
    return readable(anthropic.to_chat(body)[0] if isinstance(body, MessagesRequest) else responses.to_chat(body.input, ()))


def strict(messages: Chat, /, *, tools: object) -> str:
    """As a template that takes one system message, at the beginning, and turns."""
    roles = [message["role"] for message in messages if message["role"] != "tool" and not message.get("tool_calls")]
    turns = roles[1:] if roles[0] == "system" else roles
    if turns != ["user", "assistant"] * (len(turns) // 2) + ["user"] * (len(turns) % 2):
        raise RefusedError("turns")
    return "".join(f"<{message['role']}>{message['content']}" for message in messages)


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_program_sends_is_taken(program: str, turn: int) -> None:
    body, chat = request_of(program, turn), chat_of(program, turn)
    assert [tool.name for tool in read_tools(body.turn_inputs(thinks=True)["tools"])] == PROGRAMS[program]
    options = body.options_of_call() if isinstance(body, MessagesRequest) else body.options_of_call(4096)
    assert GenerationConfig(**options).max_new_tokens in (4096, 32000)
    text = fitted(strict, chat)
    assert "Say hi." in text
    assert "billing" not in text
    for message in chat:
        assert message["content"] in text
    if turn == 2:
        assert [call["function"]["name"] for message in chat for call in message.get("tool_calls", ())] == PROGRAMS[program][:1]
        assert chat[-1]["role"] == "tool"
        assert "hi" in chat[-1]["content"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_second_turn_begins_with_the_first_so_that_it_comes_from_the_cache(program: str) -> None:
    first, second = chat_of(program, 1), chat_of(program, 2)
    assert second[: len(first)] == first


def test_what_claude_code_counts_is_what_it_sends() -> None:
    body = json.loads((FOLDER / "claude_code_1.json").read_text(encoding="utf-8"))
    counted = {name: body[name] for name in ("model", "messages", "system", "tools", "thinking")}
    assert anthropic.to_chat(CountRequest.model_validate(counted)) == anthropic.to_chat(MessagesRequest.model_validate(body))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server whose model has space for the descriptions of tools."""
    pytest.importorskip("llguidance")
    tiny = onnx_textgen.load(Path(__file__).parents[2] / "artifacts" / "tiny-transformer", threads=1, device="cpu")
    with served({"chatty": Model(tiny.folder, tiny.manifest, tiny.graph, chat_template=TEMPLATE)}) as (found, _):
        yield found


def bounded(route: str, body: dict[str, Any]) -> dict[str, Any]:
    """The request for an answer that is short, with space for a call."""
    if route in ("/api/chat", "/api/generate"):
        return {**body, "options": {**(body.get("options") or {}), "num_predict": MOST_TOKENS}}
    limits = [name for name in ("max_tokens", "max_completion_tokens", "max_output_tokens") if name in body]
    default = "max_output_tokens" if route == "/v1/responses" else "max_tokens"
    return body if route == "/api/show" else body | dict.fromkeys(limits or [default], MOST_TOKENS)


def said(data: dict[str, Any]) -> str:
    """The text of an answer, or of a part of one, with its calls."""
    if "output" in data:
        contents = [part["text"] for item in data["output"] for part in item.get("content", ())]
        return "".join(contents + [item["name"] for item in data["output"] if item["type"] == "function_call"])
    choice = next(iter(data.get("choices", [data])), {})
    message = choice.get("message") or choice.get("delta") or choice
    called = [*(call["function"] for call in message.get("tool_calls") or ()), message.get("function_call") or {}]
    texts = (message.get(name) for name in ("content", "text", "response"))
    return "".join(filter(None, [*texts, *(function.get("name") for function in called)]))


def end_of(data: dict[str, Any]) -> str | None:
    """Why an answer ended; None for a part that is not its last."""
    choice = next(iter(data.get("choices", [data])), {})
    return choice.get("finish_reason") or data.get("done_reason") or data.get("status")


@pytest.mark.parametrize(("program", "place"), REQUESTS)
def test_what_other_programs_send_is_answered(url: str, program: str, place: int) -> None:
    method, route, body = CLIENTS[program][place]
    if method == "GET":
        answer = patient_http.get(f"{url}{route}")
        assert (answer.status_code, "chatty" in answer.text or "version" in answer.json() or route == "/api/ps") == (200, True)
        return
    answer = patient_http.post(f"{url}{route}", json=bounded(route, body))
    assert answer.status_code == 200, answer.text
    if route == "/api/show":
        assert "completion" in answer.json()["capabilities"]
        return
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith(("{", "data: "))]
    assert (lines[-1] == "[DONE]") == (bool(body.get("stream")) and route in ("/v1/chat/completions", "/v1/completions"))
    parts = [json.loads(line) for line in lines if line != "[DONE]"]
    if route == "/v1/responses":
        parts = [parts[-1].get("response", parts[-1])]
    text, end = "".join(map(said, parts)), next(filter(None, map(end_of, reversed(parts))))
    assert end in ENDS
    assert text or end in ("stop", "unload")
    if (body.get("stream_options") or {}).get("include_usage"):
        assert parts[-1]["usage"]["completion_tokens"] > 0
    if body.get("tool_choice") == "required":
        assert text in [(tool.get("function") or tool)["name"] for tool in body["tools"]]


def test_the_recordings_have_what_programs_send() -> None:
    fields = {field for requests in CLIENTS.values() for _, _, body in requests for field in body or ()}
    wanted = {"tools", "functions", "stop", "stream_options", "response_format", "metadata", "truncation", "format", "keep_alive"}
    assert wanted <= fields
