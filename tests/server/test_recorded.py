"""What coding agents sent in conversations of five turns with Qwen2.5-Coder-0.5B-Instruct, by their recipes in docs/serving.md.

`recorded/PROGRAM.json` has the first body whole, and of each later one how many messages of the one before it begins with, and what
was added or changed. Texts of more than 160 characters are cut; here words take the place of what was left out.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("onnx")

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.answers.tools import read_tools
from onnx_textgen.chat.fitting import fitted
from onnx_textgen.chat.parts import readable
from onnx_textgen.text.refused import RefusedError
from onnx_textgen_server.anthropic import conversion as anthropic
from onnx_textgen_server.anthropic.schema import MessagesRequest
from onnx_textgen_server.openai.responses import conversion as responses
from onnx_textgen_server.openai.responses.schema import ResponsesRequest
from onnx_textgen_server.openai.schema import ChatRequest
from support import patient_http
from support.cache_graphs import Attention, Recurrent, Tiny
from support.live_server import served

FOLDER = Path(__file__).parent / "recorded"
LEFT_OUT = re.compile(r"\.\.\. \((\d+) characters left out\)")


class Program(NamedTuple):
    """A route, its request, and the place of the messages."""

    path: str
    request: Any
    messages: str = "messages"


PROGRAMS = {
    "claude": Program("/v1/messages", MessagesRequest),
    "claude_tools": Program("/v1/messages", MessagesRequest),
    "codex": Program("/v1/responses", ResponsesRequest, "input"),
    "codex_tools": Program("/v1/responses", ResponsesRequest, "input"),
    "opencode": Program("/v1/chat/completions", ChatRequest),
    "qwen": Program("/v1/chat/completions", ChatRequest),
}
"""Those with tools have two short turns, the second with the result of a call."""
DROPS_THINKING = (
    "{{ tools | tojson }}</s>{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<call>{{ c.function | tojson }}</call>{% endfor %}</s>{% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}"
)
"""A prompt ends where the thinking begins, and no later one has that."""
GRAPHS = {"attention": Tiny((Attention(0, shared=True),)), "recurrent": Tiny((Recurrent(0), Attention(1, shared=True)))}


def filled(given: Any) -> Any:
    """The value with words for what was left out."""
    if isinstance(given, str):
        return LEFT_OUT.sub(lambda found: ("the dog ran to the park " * (int(found[1]) // 24 + 1))[: int(found[1])], given)
    if isinstance(given, Mapping):
        return {name: filled(each) for name, each in given.items()}
    return [filled(each) for each in given] if isinstance(given, list) else given


@functools.cache
def bodies(program: str) -> list[dict[str, Any]]:
    """The bodies of all requests of a conversation."""
    recorded, place = filled(json.loads((FOLDER / f"{program}.json").read_text(encoding="utf-8"))), PROGRAMS[program].messages
    found = [recorded["first"]]
    for later in recorded["later"]:
        messages = [*found[-1][place][: later["kept"]], *later["added"]]
        found.append({**recorded["first"], **later.get("changed", {}), place: messages})
    return found


def strict(messages: Any, /, *, tools: object) -> str:
    """As a template that takes one system message, at the beginning, and turns."""
    roles = [message["role"] for message in messages if message["role"] != "tool" and not message.get("tool_calls")]
    turns = roles[1:] if roles[0] == "system" else roles
    if turns != ["user", "assistant"] * (len(turns) // 2) + ["user"] * (len(turns) % 2):
        raise RefusedError("turns")
    return "".join(f"<{message['role']}>{message['content']}" for message in messages)


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_program_sends_is_taken_whole(program: str) -> None:
    for given in bodies(program):
        body = PROGRAMS[program].request.model_validate(given)
        inputs = body.turn_inputs(thinks=True)
        functions = {tool.get("function", tool).get("name") for tool in given["tools"] if tool.get("type") in (None, "function")}
        assert {tool.name for tool in read_tools(inputs["tools"])} == functions
        if isinstance(body, MessagesRequest):
            chat = readable(anthropic.to_chat(body)[0])
        elif isinstance(body, ResponsesRequest):
            chat = readable(responses.to_chat(body.input, ()))
        else:
            chat = readable([message.as_data() for message in body.messages])
        text = fitted(strict, chat)
        assert "billing" not in text
        assert "Say hi." in text
        for message in chat:
            assert message["content"] in text
    if program.endswith("tools"):
        assert [message["role"] for message in chat[-2:]] == ["assistant", "tool"]
        assert chat[-2]["tool_calls"]
        assert "hi" in chat[-1]["content"]


@pytest.fixture(scope="module", params=GRAPHS)
def url(request: pytest.FixtureRequest, story: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of a tiny model with a long context, over the embedded tokenizer."""
    sizes = {"vocab_size": story.manifest.geometry.vocab_size, "context": 40_000}
    folder = dataclasses.replace(GRAPHS[request.param], **sizes).package(tmp_path_factory.mktemp("package"))
    tiny = onnx_textgen.load(folder, device="cpu", threads=1)
    manifest = dataclasses.replace(tiny.manifest, eos_ids=story.manifest.eos_ids, bos_id=story.manifest.bos_id)
    model = Model(folder, manifest, tiny.graph, chat_template=DROPS_THINKING, tokenizer=story.tokenizer)
    with served({"small": model}) as (found, _):
        yield found


@pytest.mark.parametrize("program", [program for program in PROGRAMS if "tools" not in program])
def test_from_the_second_turn_on_95_percent_come_from_the_cache(url: str, program: str) -> None:
    shares = []
    for body in bodies(program):
        limits = {"max_output_tokens" if "input" in body else "max_tokens": 1}
        answer = patient_http.post(url + PROGRAMS[program].path, json={**body, **limits, "stream": False})
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
        cached = details["cached_tokens"] if details else usage["cache_read_input_tokens"]
        shares.append(cached / (usage.get("prompt_tokens") or usage["input_tokens"] + (0 if details else cached)))
    assert len(shares) >= 5
    assert min(shares[1:]) >= 0.95


def test_what_claude_code_counts_is_what_it_sends(url: str) -> None:
    body = bodies("claude")[0]
    counted = {name: body[name] for name in ("model", "messages", "system", "tools", "thinking")}
    found = patient_http.post(f"{url}/v1/messages/count_tokens", json=counted).json()["input_tokens"]
    usage = patient_http.post(f"{url}/v1/messages", json={**body, "max_tokens": 1, "stream": False}).json()["usage"]
    assert found == usage["input_tokens"] + usage["cache_read_input_tokens"]
