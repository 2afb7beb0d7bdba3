"""Request bodies of `/v1/messages`, and their content blocks.

Every option of `GenerationConfig` is a parameter under the same name, in addition to Anthropic's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from onnx_textgen.errors import OptionError
from onnx_textgen.options.checks import shown

from ..requests.body import Body, Request
from ..requests.content_parts import refuse_other_types
from ..requests.parameters import read_parameters, set_options
from ..requests.thinking import thinking_inputs

RENAMED_FIELDS = {"max_new_tokens": "max_tokens", "stop": "stop_sequences", "json_schema": "output_config.format"}
MAX_MESSAGES = 4096
BLOCK_TYPES = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
"""OpenAI's `tool_choice` for Anthropic's."""


def as_blocks(given: object) -> object:
    """A content that is a text as one block; raises `ValueError` for a block that models here cannot read, such as an image."""
    if isinstance(given, str):
        return [{"type": "text", "text": given}]
    refuse_other_types(given, BLOCK_TYPES, f"the models here read text: a block should be of the type {', '.join(BLOCK_TYPES)}")
    return given


class TextBlock(Body):
    """A text."""

    type: Literal["text"]
    text: str


Texts = Annotated[list[TextBlock], BeforeValidator(as_blocks)]


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
    input: dict[str, Any]


class ToolResultBlock(Body):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = Field(default_factory=list)
    is_error: bool = False
    """Has no effect: the content says what failed."""


Block = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock,
    Field(discriminator="type"),
]


class Turn(Body):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], BeforeValidator(as_blocks)]


class ToolDefinition(Body):
    """A tool that the client runs."""

    type: str | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    def as_function(self) -> dict[str, Any]:
        """The tool in OpenAI's form; raises `OptionError` for one that Anthropic's servers run, or whose schema they know."""
        if self.type not in (None, "custom"):
            raise OptionError(f"a tool of the type {shown(self.type)} is one of Anthropic's; give tools with an input_schema")
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
        inputs: dict[str, Any] = {"tools": [tool.as_function() for tool in self.tools], "chat_template_kwargs": variables}
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
