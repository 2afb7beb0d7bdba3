"""Request bodies of `/v1/messages`, and their content blocks.

Every option of `GenerationConfig` is a parameter under the same name, in addition to Anthropic's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from ..requests.body import Body, Request
from ..requests.content_parts import Part, as_parts, functions_among
from ..requests.parameters import read_parameters, set_options
from ..requests.thinking import thinking_inputs

RENAMED_FIELDS = {"max_new_tokens": "max_tokens", "stop": "stop_sequences", "json_schema": "output_config.format"}
MAX_MESSAGES = 4096
BLOCK_TYPES = ("thinking", "redacted_thinking", "tool_use", "tool_result")
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
"""OpenAI's `tool_choice` for Anthropic's."""


def as_blocks(given: object) -> object:
    """A content that is a text as one block, and a document of plain text as text."""
    return [*map(as_block, as_parts(given))]


def as_block(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """A block, with the text of a document or of a result of a search that has one."""
    source = given.get("source") if given["type"] == "document" else None
    if isinstance(source, Mapping) and source.get("type") == "text" and isinstance(source.get("data"), str):
        title = given.get("title")
        return {"type": "text", "text": f"{title}\n{source['data']}" if isinstance(title, str) else source["data"]}
    if given["type"] == "search_result" and isinstance(found := given.get("content"), list):
        texts = [each["text"] for each in found if isinstance(each, Mapping) and isinstance(each.get("text"), str)]
        return {"type": "text", "text": "\n".join(texts)}
    return given


def kind_of_block(block: object) -> str:
    """Which of our blocks one is."""
    kind = block.get("type") if isinstance(block, Mapping) else getattr(block, "type", None)
    return kind if kind in BLOCK_TYPES else "part"


Texts = Annotated[list[Part], BeforeValidator(as_blocks)]


class ThinkingBlock(Body):
    """What the model thought; its signature is not checked."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(Body):
    """What another model thought, encrypted: it is left out."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(Body):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Any


class ToolResultBlock(Body):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = Field(default_factory=list)
    is_error: bool = False
    """Has no effect: the content says what failed."""


Block = Annotated[
    Annotated[Part, Tag("part")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[RedactedThinkingBlock, Tag("redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")],
    Discriminator(kind_of_block),
]


class Turn(Body):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], BeforeValidator(as_blocks)]


class ToolDefinition(Body):
    """A tool that the client runs."""

    type: str | None = None
    name: str = ""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    def as_function(self) -> dict[str, Any]:
        """The tool in OpenAI's form; one that Anthropic's servers run, or whose schema they know, keeps its type."""
        if self.type not in (None, "custom"):
            return {"type": self.type}
        given = {"description": self.description, "parameters": self.input_schema, "strict": self.strict}
        return {"type": "function", "function": {"name": self.name, **{key: value for key, value in given.items() if value}}}


class ToolChoice(Body):
    """Which tools may or have to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class ThinkingConfig(Body):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=0)] | None = None
    """Most tokens of thinking."""
    display: Literal["summarized", "omitted"] | None = None
    """`omitted`: the thinking is not returned."""


class OutputFormat(Body):
    """The required form of an answer's text."""

    model_config = ConfigDict(populate_by_name=True)
    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """The form of the answer, and how long the model thinks for it."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(Request):
    """`POST /v1/messages/count_tokens`: what a prompt is made of."""

    model_config = ConfigDict(extra="allow")
    messages: Annotated[list[Turn], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Texts = Field(default_factory=list)
    tools: list[ToolDefinition] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template."""

    def turn_inputs(self, *, thinks: bool) -> dict[str, Any]:
        """The arguments of `ChatEncoder.turn`; `thinks`: whether the model thinks."""
        choice, thinking, variables = self.tool_choice, self.thinking, self.chat_template_kwargs
        inputs: dict[str, Any] = {
            "tools": functions_among([tool.as_function() for tool in self.tools]),
            "chat_template_kwargs": variables,
        }
        if choice is not None:
            inputs["tool_choice"] = CHOICES.get(choice.type, {"type": "function", "function": {"name": choice.name}})
            inputs["parallel_tool_calls"] = False if choice.disable_parallel_tool_use else None
        if thinks and (thinking is None or thinking.type == "disabled"):
            inputs |= thinking_inputs(enabled=False, variables=variables)
        elif thinks and thinking is not None:
            effort = self.output_config.effort if self.output_config is not None else None
            inputs |= thinking_inputs(effort=effort, enabled=True, budget=thinking.budget_tokens, variables=variables)
        return inputs


class MessagesRequest(CountRequest):
    """`POST /v1/messages`."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None

    @property
    def shows_thinking(self) -> bool:
        """Whether the answer has the text of the thinking."""
        return self.thinking is None or self.thinking.display != "omitted"

    def options_of_call(self) -> dict[str, Any]:
        """Options for `GenerationConfig`; raises `OptionError` for an unknown parameter."""
        form = self.output_config.format if self.output_config is not None else None
        options = {
            "max_new_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stop": self.stop_sequences or None,
            "json_schema": form.json_schema if form is not None else None,
            "adapter": self.adapter,
        }
        return set_options(options | read_parameters(self.model_extra or {}, renamed=RENAMED_FIELDS))
