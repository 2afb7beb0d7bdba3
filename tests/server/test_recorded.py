"""What programs sent in two turns, the second with the result of a call: Codex CLI 0.171 and Claude Code 2.1, with long texts cut.

Each was pointed at a server that writes bodies down, by its recipe in docs/serving.md.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from onnx_textgen.answers.tools import read_tools
from onnx_textgen.chat.fitting import fitted
from onnx_textgen.chat.parts import readable
from onnx_textgen.options.generation_config import GenerationConfig
from onnx_textgen.text.refused import RefusedError
from onnx_textgen_server.anthropic import conversion as anthropic
from onnx_textgen_server.anthropic.schema import CountRequest, MessagesRequest
from onnx_textgen_server.openai.responses import conversion as responses
from onnx_textgen_server.openai.responses.schema import ResponsesRequest

FOLDER = Path(__file__).parent / "recorded"
PROGRAMS = {"codex": ["exec_command", "view_image"], "claude_code": ["Bash", "Read", "Write"]}
"""Each with the functions that it asks for."""
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
