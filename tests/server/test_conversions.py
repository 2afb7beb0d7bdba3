"""What every route makes of tools, items and parts that do not run or are not read here: functions and texts are kept."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from onnx_textgen.chat.fitting import orders_of
from onnx_textgen.chat.messages import prepare
from onnx_textgen.chat.parts import readable
from onnx_textgen.derivation.derive import derive
from onnx_textgen.errors import OptionError, TemplateError
from onnx_textgen_server.anthropic import conversion as anthropic
from onnx_textgen_server.anthropic.schema import CountRequest, MessagesRequest
from onnx_textgen_server.ollama import conversion as ollama
from onnx_textgen_server.ollama.schema import ChatRequest as OllamaRequest
from onnx_textgen_server.openai.responses import conversion as responses
from onnx_textgen_server.openai.responses.schema import ResponsesRequest
from onnx_textgen_server.openai.schema import ChatRequest
from onnx_textgen_server.requests.content_parts import functions_among

Chat = list[dict[str, Any]]
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
NESTED = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


def of_chat(messages: Chat) -> Chat:
    return [message.as_data() for message in ChatRequest.model_validate({"messages": messages}).messages]


def of_responses(items: Chat) -> Chat:
    return responses.to_chat(ResponsesRequest.model_validate({"input": items}).input, ())


def of_anthropic(messages: Chat, **more: Any) -> Chat:
    return anthropic.to_chat(CountRequest.model_validate({"messages": messages, **more}))[0]


def of_ollama(messages: Chat) -> Chat:
    return ollama.to_chat(OllamaRequest.model_validate({"messages": messages}).messages)


def tools_of_chat(tools: Chat, choice: object) -> Mapping[str, Any]:
    return ChatRequest.model_validate({"messages": [], "tools": tools, "tool_choice": choice} | SAID).turn_inputs(thinks=False)


def tools_of_responses(tools: Chat, choice: object) -> Mapping[str, Any]:
    return ResponsesRequest.model_validate({"tools": tools, "tool_choice": choice}).turn_inputs(thinks=False)


def tools_of_anthropic(tools: Chat, choice: object) -> Mapping[str, Any]:
    return MessagesRequest.model_validate({"max_tokens": 1, "tools": tools} | SAID).turn_inputs(thinks=False)


def tools_of_ollama(tools: Chat, choice: object) -> Mapping[str, Any]:
    return {"tools": functions_among(OllamaRequest.model_validate({"tools": tools}).tools or ())}


SAID = {"messages": [{"role": "user", "content": "Hi"}]}
OTHER_TOOLS = [
    *(
        {"type": kind}
        for kind in ("web_search", "local_shell", "image_generation", "tool_search", "computer_use_preview", "file_search")
    ),
    {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
    {"type": "custom", "custom": {"name": "apply_patch"}},
    {"type": "namespace", "name": "mcp__a", "description": "", "tools": [{"type": "function", "name": "g", "parameters": {}}]},
    {"type": "mcp", "server_label": "a", "server_url": "https://example.com"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
]
OTHERS_OF_ANTHROPIC = [
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    {"type": "bash_20250124", "name": "bash"},
    {"type": "computer_20250124", "name": "computer", "display_width_px": 1},
    {"type": "mcp_toolset", "mcp_server_name": "a"},
]
TOOLS: Mapping[str, tuple[Callable[[Chat, object], Mapping[str, Any]], dict[str, Any], Chat]] = {
    "chat": (tools_of_chat, NESTED, OTHER_TOOLS),
    "responses": (tools_of_responses, {"type": "function", "name": "f", "parameters": SCHEMA}, OTHER_TOOLS),
    "anthropic": (tools_of_anthropic, {"name": "f", "input_schema": SCHEMA}, OTHERS_OF_ANTHROPIC),
    "ollama": (tools_of_ollama, NESTED, OTHER_TOOLS),
}


@pytest.mark.parametrize("route", TOOLS)
def test_functions_are_used_and_other_tools_are_left_out_with_one_line_in_the_log(
    route: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    read, function, others = TOOLS[route]
    assert read([*others, function, *others], None)["tools"] == [NESTED]
    (record,) = caplog.records
    assert record.getMessage().startswith("a request has tools that do not run here, and are left out: ")
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_the_choice_among_allowed_tools_is_taken(mode: str) -> None:
    nested = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": "f"}}]}}
    flat = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}]}
    other = {"type": "function", "function": {"name": "g"}}
    inputs = tools_of_chat([NESTED, other], nested)
    assert (inputs["tools"], inputs["tool_choice"]) == ([NESTED], mode)
    inputs = tools_of_responses([TOOLS["responses"][1], {"type": "function", "name": "g"}], flat)
    assert (inputs["tools"], inputs["tool_choice"]) == ([NESTED], mode)


def picture(kind: str) -> dict[str, Any]:
    return {"type": kind, "source": {"data": "aGk="}, "image_url": {"url": "data:image/png;base64,aGk="}}


UNREAD = {
    "chat": (of_chat, ("image_url", "input_audio", "file")),
    "responses": (of_responses, ("input_image", "input_file", "input_audio")),
    "anthropic": (of_anthropic, ("image", "document", "container_upload")),
}


@pytest.mark.parametrize("route", UNREAD)
def test_earlier_parts_that_are_no_text_are_named_and_the_last_are_refused(route: str) -> None:
    read, kinds = UNREAD[route]
    for kind in kinds:
        asked = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture(kind)]}
        answered = [asked, {"role": "assistant", "content": "A dog."}, {"role": "user", "content": "Sure?"}]
        first, *rest = readable(read(answered))
        assert [part["text"] for part in first["content"]] == ["What is it?", f"[{kind} left out]"]
        assert [message["content"] for message in rest] == ["A dog.", "Sure?"]
        with pytest.raises(TemplateError, match=f"the models here read text, found a part of the type '{kind}'; leave it out"):
            readable(read([*answered[:2], asked]))


def test_images_of_earlier_messages_of_ollama_are_named() -> None:
    asked = {"role": "user", "content": "What is it?", "images": ["aGk="]}
    first, _ = readable(of_ollama([asked, {"role": "assistant", "content": "A dog."}]))
    assert [part["text"] for part in first["content"]] == ["What is it?", "[image left out]"]
    with pytest.raises(TemplateError, match="the models here read text"):
        readable(of_ollama([asked]))


def test_documents_of_plain_text_are_read() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "The dog barks."}
    found = {"type": "search_result", "source": "a", "title": "b", "content": [{"type": "text", "text": "It is brown."}]}
    blocks = [{"type": "document", "source": source, "title": "Dogs"}, found, {"type": "text", "text": "What does it do?"}]
    assert of_anthropic([{"role": "user", "content": blocks}]) == [
        {"role": "user", "content": "Dogs\nThe dog barks.\nIt is brown.\nWhat does it do?"}
    ]


def test_calls_of_tools_that_do_not_run_here_are_named_in_the_answers_that_had_them() -> None:
    kinds = ("web_search_call", "computer_call", "mcp_call", "image_generation_call", "local_shell_call", "a\nb")
    items = [
        {"role": "user", "content": "?"},
        *({"type": kind, "id": "x"} for kind in kinds),
        {"role": "assistant", "content": "Yes."},
    ]
    _, answer = readable(of_responses(items))
    assert [part["text"] for part in answer["content"]] == [
        *(f"[{kind} left out]" for kind in kinds[:-1]),
        "[a part left out]",
        "Yes.",
    ]
    blocks = [
        {"type": "server_tool_use", "id": "x", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "content": []},
    ]
    _, answer = readable(of_anthropic([{"role": "user", "content": "?"}, {"role": "assistant", "content": blocks}]))
    assert [part["text"] for part in answer["content"]] == [
        "[server_tool_use left out]",
        "[web_search_tool_result left out]",
    ]


def test_calls_of_tools_that_take_a_text_are_calls_with_that_text() -> None:
    items = [
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done."},
    ]
    call, result = of_responses(items)
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"input": "*** Begin"}
    assert result == {"role": "tool", "tool_call_id": "c1", "name": "apply_patch", "content": "Done."}


def test_answers_come_back_with_all_that_a_server_may_have_written() -> None:
    content = [{"type": "output_text", "text": "Yes.", "annotations": [], "logprobs": []}, {"type": "refusal", "refusal": " No."}]
    thought = {
        "type": "reasoning",
        "id": "r",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
        "encrypted_content": None,
    }
    message = {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": content}
    assert of_responses([thought, message]) == [{"role": "assistant", "content": "Yes. No.", "reasoning_content": "Hm."}]
    parts = [{"type": "text", "text": "Yes."}, {"type": "refusal", "refusal": " No."}]
    back = {"role": "assistant", "content": parts, "refusal": None, "annotations": [], "audio": None, "function_call": None}
    (found,) = of_chat([back])
    assert found == {"role": "assistant", "content": "Yes. No.", "annotations": []}


@pytest.mark.parametrize("arguments", ["{'a': 1}", ["a"], 5])
def test_calls_whose_arguments_are_no_object_are_taken(arguments: object) -> None:
    wanted = arguments if isinstance(arguments, str) else json.dumps(arguments)
    items = [{"type": "function_call", "call_id": "c1", "name": "f", "arguments": arguments}]
    block = {"type": "tool_use", "id": "c1", "name": "f", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "x"}
    called = [{"function": {"name": "f", "arguments": arguments}}]
    turns = [{"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    for chat in (of_responses(items), of_anthropic(turns), of_ollama([{"role": "assistant", "tool_calls": called}])):
        assert chat[0]["tool_calls"][0]["function"]["arguments"] == wanted


def test_the_billing_tag_of_claude_code_is_dropped_so_that_the_rest_comes_from_the_cache() -> None:
    tag = "x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch=0000{};"
    chats = [
        of_anthropic(SAID["messages"], system=[{"type": "text", "text": tag.format(number)}, {"type": "text", "text": "Be kind."}])
        for number in (1, 2)
    ]
    assert chats[0] == chats[1] == [{"role": "system", "content": "Be kind."}, *SAID["messages"]]
    assert of_anthropic(SAID["messages"], system=tag) == SAID["messages"]
    said = f"{tag}\nis what this project is about."
    assert of_anthropic(SAID["messages"], system=said)[0]["content"] == said


def test_a_last_turn_that_is_a_call_asks_for_its_result() -> None:
    with pytest.raises(OptionError, match="the messages end with a tool_use"):
        of_anthropic([{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}])


DEEP: list[Any] = []
for _ in range(900):
    DEEP = [DEEP]
ODD = [
    5,
    "a",
    [],
    [5],
    [None],
    {},
    {"a": 5},
    [{}],
    [{"type": 5}],
    [{"type": ["a"]}],
    [{"type": "function", "function": 5}],
    DEEP,
    True,
    1e999,
]
CHOOSING = {name: TOOLS[name][:2] for name in ("chat", "responses")}


def choice_of(odd: object) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": odd, "tools": odd}


READS: Mapping[str, Callable[[Any], object]] = {
    **{f"tools, {read.__name__}": functools.partial(lambda read, odd: read(odd, None), read) for read, _, _ in TOOLS.values()},
    **{
        f"choices, {name}": functools.partial(lambda read, tool, odd: read([tool], choice_of(odd)), *CHOOSING[name])
        for name in CHOOSING
    },
    **{
        f"contents, {taken.__name__}, {role}": functools.partial(
            lambda taken, role, odd: taken([{"role": role, "content": odd, "tool_calls": odd}]), taken, role
        )
        for taken in (of_chat, of_responses, of_anthropic, of_ollama)
        for role in ("user", "assistant")
    },
    "items": of_responses,
    "blocks": lambda odd: of_anthropic(
        [{"role": "user", "content": [{"type": kind, "source": odd, "content": odd}]} for kind in BLOCKS]
    ),
    "arguments": lambda odd: fitted_with_tools(
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": odd}}]}]
    ),
    "calls": lambda odd: fitted_with_tools([{"role": "user", "content": "a", "tool_calls": odd}] * 2),
}
BLOCKS = ("document", "search_result", "tool_result", "thinking", "tool_use")
CALLS_NOTHING = derive("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", bos_token=None, eos_token=None)


def fitted_with_tools(messages: Chat) -> list[Any]:
    prepared, _ = prepare(readable(of_chat(messages)), [], CALLS_NOTHING)
    return list(orders_of(prepared))


@pytest.mark.parametrize("what", READS)
def test_odd_values_are_refused_in_our_words_or_taken(what: str) -> None:
    for odd in ODD:
        with contextlib.suppress(ValueError, OptionError, TemplateError):
            READS[what](odd)
