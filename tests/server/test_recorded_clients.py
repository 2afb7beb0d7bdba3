"""What programs other than the coding agents of `test_recorded.py` sent; all of it is answered.

LiteLLM, LangChain, aider, the command line of Continue, and Ollama's client, called as Home Assistant calls it, were pointed at
a server that writes bodies down. Bodies of Open WebUI are what its functions make of a chat. Those of Zed, and Continue's of past
images and of infilling, are written by the types in their sources.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import onnx_textgen
from onnx_textgen import Model
from support import patient_http
from support.live_server import served

from .conftest import TEMPLATE

CLIENTS = json.loads((Path(__file__).parent / "recorded" / "clients.json").read_text(encoding="utf-8"))
"""Of each program: method, route and body of its requests."""
REQUESTS = [(program, place) for program, requests in CLIENTS.items() for place in range(len(requests))]
ENDS = {"stop", "length", "tool_calls", "function_call", "completed", "incomplete", "unload"}
MOST_TOKENS = 64


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
        return {**body, "options": {"seed": 7, **(body.get("options") or {}), "num_predict": MOST_TOKENS}}
    limits = [name for name in ("max_tokens", "max_completion_tokens", "max_output_tokens") if name in body]
    default = "max_output_tokens" if route == "/v1/responses" else "max_tokens"
    seed = {"seed": 7} if route in ("/v1/chat/completions", "/v1/completions") else {}  # not every draw has a character to show
    return body if route == "/api/show" else seed | body | dict.fromkeys(limits or [default], MOST_TOKENS)


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
