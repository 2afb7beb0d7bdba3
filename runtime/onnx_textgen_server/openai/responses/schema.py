"""Request bodies of `/v1/responses`, and their items.

Every option of `GenerationConfig` is a parameter under the same name, in addition to OpenAI's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from onnx_textgen.errors import OptionError
from onnx_textgen.options.checks import shown

from ...requests.body import Body, MostTokens, Request, most_tokens
from ...requests.content_parts import Parts, allowed_tools, functions_among
from ...requests.parameters import read_parameters, set_options
from ...requests.thinking import thinking_inputs
from ..schema import MAX_MESSAGES, Effort

RENAMED_FIELDS = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_new_tokens"), "max_output_tokens"),
    **dict.fromkeys(("response_format", "json_schema"), "text.format"),
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
}
ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
CUSTOM = {"custom_tool_call": "function_call", "custom_tool_call_output": "function_call_output"}
"""Calls of tools whose argument is a text, as functions."""


def as_items(given: object) -> object:
    """An input that is a text as one message; raises `ValueError` for an item that is no object."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return [as_item(each) for each in given] if isinstance(given, list) else given


def as_item(given: object) -> object:
    """An item with its type; that of a tool's call as that of a function."""
    if not isinstance(given, Mapping):
        raise ValueError(f"an item should be an object with a type, found {shown(given)}")
    item = {"type": "item_reference" if given.keys() == {"id"} else "message", **given}
    if item["type"] == "custom_tool_call":
        item["arguments"] = json.dumps({"input": item.get("input", "")}, ensure_ascii=False)
    return {**item, "type": CUSTOM.get(item["type"], item["type"]) if isinstance(item["type"], str) else item["type"]}


def kind_of_item(item: object) -> str:
    """Which of our items one is."""
    kind = item.get("type") if isinstance(item, Mapping) else getattr(item, "type", None)
    return kind if kind in ITEM_TYPES else "other"


def refuse_logprobs(given: list[str] | None) -> list[str] | None:
    """Allow only what belongs to tools that OpenAI's servers run, or to encrypted thinking: there is none here."""
    if "message.output_text.logprobs" in (given or ()):
        raise ValueError("log-probabilities are not returned here; take /v1/chat/completions for them")
    return given


class MessageItem(Body):
    """One message."""

    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts


class CallItem(Body):
    """A call of a function."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: Any = ""


class ResultItem(Body):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Parts


class ThoughtPart(Body):
    """A part of the thinking."""

    text: str


class ThoughtItem(Body):
    """What the model thought; a thought of another model, which is encrypted, is left out."""

    type: Literal["reasoning"]
    content: list[ThoughtPart] | None = None
    summary: list[ThoughtPart] | None = None


class ReferenceItem(Body):
    """An item of a response that is kept."""

    type: Literal["item_reference"]
    id: str


class OtherItem(Body):
    """A call of a tool that does not run here, or its result: only its type is kept."""

    type: str


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[ResultItem, Tag("function_call_output")]
    | Annotated[ThoughtItem, Tag("reasoning")]
    | Annotated[ReferenceItem, Tag("item_reference")]
    | Annotated[OtherItem, Tag("other")],
    Discriminator(kind_of_item),
]
ITEMS = TypeAdapter[list[Item]](Annotated[list[Item], BeforeValidator(as_items)])
"""Reads items that a response consists of."""


class TextFormat(Body):
    """The required form of an answer's text."""

    model_config = ConfigDict(populate_by_name=True)
    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    name: str | None = None
    strict: bool | None = None

    def schema_of_text(self) -> dict[str, Any] | None:
        """The JSON Schema that the text must follow."""
        if self.type == "json_object":
            return {"type": "object"}
        if self.type == "json_schema" and self.json_schema is None:
            raise OptionError('text.format of the type json_schema needs a "schema"')
        return self.json_schema if self.type == "json_schema" else None


class TextConfig(Body):
    """What the text should be like."""

    format: TextFormat | None = None


class ReasoningConfig(Body):
    """How the model thinks."""

    effort: Effort | None = None


class ResponsesRequest(Request):
    """`POST /v1/responses`."""

    model_config = ConfigDict(extra="allow")
    input: Annotated[list[Item], BeforeValidator(as_items), Field(max_length=MAX_MESSAGES)] = Field(default_factory=list)
    instructions: str | None = None
    """The system message, for this request only."""
    previous_response_id: str | None = None
    """The answer that the input follows."""
    store: bool | None = None
    """Whether to keep the conversation for `previous_response_id`; by default it is kept."""
    stream: bool | None = None
    include: Annotated[list[str] | None, AfterValidator(refuse_logprobs)] = None
    background: Literal[False] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    """Whether the oldest messages are left out of a conversation that is longer than the context."""
    metadata: dict[str, str] | None = None
    max_output_tokens: MostTokens = None
    temperature: float | None = None
    top_p: float | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    """How long the model thinks; without effect if it does not think."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template."""

    def turn_inputs(self, *, thinks: bool) -> dict[str, Any]:
        """The arguments of `ChatEncoder.turn`; `thinks`: whether the model thinks."""
        functions = [as_function(tool) for tool in functions_among(self.tools)]
        tools, choice = allowed_tools(functions, self.tool_choice)
        inputs: dict[str, Any] = {
            "tools": tools,
            "tool_choice": choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "chat_template_kwargs": self.chat_template_kwargs,
        }
        if thinks and self.reasoning is not None and self.reasoning.effort is not None:
            inputs |= thinking_inputs(effort=self.reasoning.effort, variables=self.chat_template_kwargs)
        return inputs

    def options_of_call(self, context_length: int) -> dict[str, Any]:
        """Options for `GenerationConfig`; raises `OptionError` for an unknown parameter."""
        form = self.text.format if self.text is not None else None
        options = {
            "max_new_tokens": most_tokens(self.max_output_tokens, context_length),
            "temperature": self.temperature,
            "top_p": self.top_p,
            "json_schema": form.schema_of_text() if form is not None else None,
            "strict_schema": form.strict if form is not None and form.type == "json_schema" else None,
            "adapter": self.adapter,
        }
        return set_options(options | read_parameters(self.model_extra or {}, renamed=RENAMED_FIELDS))


def as_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in the form of chats; raises `OptionError` for one without a name."""
    if "name" not in tool:
        raise OptionError(f'a tool should be {{"type": "function", "name": ..., "parameters": ...}}, found {shown(dict(tool))}')
    given = {key: tool.get(key) for key in ("description", "parameters", "strict")}
    return {"type": "function", "function": {"name": tool["name"], **{key: value for key, value in given.items() if value}}}
