"""Request bodies of Ollama's routes.

`options` has Ollama's names, and every other option of `GenerationConfig` under its own name. What configures Ollama's engine
(`num_ctx`, `num_gpu`, `keep_alive` ...) is ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from onnx_textgen.errors import OptionError
from onnx_textgen.options.checks import shown

from ..openai.schema import Effort
from ..requests.body import IGNORED, Body, Request, most_tokens
from ..requests.parameters import read_parameters, set_options, whole_numbers
from ..requests.thinking import thinking_inputs

RENAMED_OPTIONS = {"max_new_tokens": "num_predict", "repetition_penalty": "repeat_penalty", "json_schema": "format"}
MAX_MESSAGES = 4096
UNLOAD = (0, "0", "0s", "0m")
"""Values of `keep_alive` by which a client has a model unloaded."""


def refuse_context(given: list[int] | None) -> None:
    """Allow only none."""
    if given:
        raise ValueError("conversations are continued by /api/chat with messages; leave context out")


class CalledFunction(Body):
    """The function of a call."""

    name: str
    arguments: Any = Field(default_factory=dict)


class Call(Body):
    """A call of a tool."""

    id: str | None = None
    function: CalledFunction


class Message(Body):
    """One message of a chat."""

    model_config = ConfigDict(extra="ignore")
    role: Literal["user", "assistant", "system", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[Call] | None = None
    tool_name: str | None = None
    """Of a result: the tool that was called."""
    tool_call_id: str | None = None


class TextRequest(Request):
    """The parameters that both routes share."""

    stream: bool = True
    options: dict[str, Any] | None = None
    format: dict[str, Any] | Literal["", "json"] | None = None
    """A JSON Schema that the answer has to follow."""
    think: bool | Effort | None = None
    """Whether the model thinks, or how long."""
    keep_alive: Any = None
    """Has no effect but on the `done_reason` of a request that has nothing to answer."""
    truncate: bool = True
    """Whether the oldest messages of a chat that is longer than the context are left out."""
    shift: bool | None = None
    """Has no effect: a text ends with the context."""
    logprobs: Literal[False] | None = None
    top_logprobs: Any = None
    """Has no effect without log-probabilities, which this wire format does not have here."""

    @property
    def ending_of_load(self) -> str:
        """The `done_reason` of a request that has nothing to answer."""
        return "unload" if self.keep_alive in UNLOAD else "load"

    def thinking_inputs(self, name: str, *, thinks: bool) -> dict[str, Any]:
        """The arguments of `ChatEncoder.turn` about thinking; `thinks`: whether the model does."""
        if self.think not in (None, False, "none") and not thinks:
            raise OptionError(f"{name} does not think; leave think out")
        if self.think is None or not thinks:
            return {}
        if isinstance(self.think, bool):
            return thinking_inputs(enabled=self.think)
        return thinking_inputs(effort=self.think)

    def options_of_call(self, context_length: int) -> dict[str, Any]:
        """Options for `GenerationConfig`; raises `OptionError` for an unknown one."""
        given = dict(self.options or {})
        most = whole_numbers(given.pop("num_predict", None))
        if most is not None and (isinstance(most, bool) or not isinstance(most, int)):
            raise OptionError(f"num_predict should be a whole number, found {shown(most)}")
        options = {
            "max_new_tokens": most_tokens(most, context_length),
            "stop": given.pop("stop", None) or None,
            "json_schema": {"type": "object"} if self.format == "json" else self.format or None,
            "adapter": self.adapter,
        }
        return set_options(options | read_parameters(given, renamed=RENAMED_OPTIONS, ignored=IGNORED))


class ChatRequest(TextRequest):
    """`POST /api/chat`."""

    messages: Annotated[list[Message], Field(max_length=MAX_MESSAGES)] = Field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    system: str | None = None
    """A first system message, as Open WebUI sends it."""


def refuse_template(given: str | None) -> None:
    """Allow only none."""
    if given:
        raise ValueError(
            "prompts are written by the model's own template; leave template out, or set raw and write the prompt yourself"
        )


class GenerateRequest(TextRequest):
    """`POST /api/generate`."""

    prompt: str = ""
    suffix: str | None = None
    """Text that comes after the generated one; for models that were trained to fill it in."""
    system: str | None = None
    raw: bool = False
    """Continue the prompt itself, without the chat template."""
    images: list[Any] | None = None
    template: Annotated[str | None, AfterValidator(refuse_template)] = None
    context: Annotated[list[int] | None, AfterValidator(refuse_context)] = None


class ShowRequest(Request):
    """`POST /api/show`."""

    model_config = ConfigDict(extra="ignore")
    name: str | None = None
    """The older name of `model`."""
