"""Request bodies: OpenAI's parameters, and every option of `GenerationConfig` under the same name.

A parameter that cannot take effect is refused. Only parameters that change nothing in an answer are ignored, see `IGNORED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

from onnx_textgen.errors import OptionError
from onnx_textgen.options.checks import DIGITS, shown
from onnx_textgen.options.generation_config import MOST_ALTERNATIVES, MOST_SEQUENCES
from onnx_textgen.text.prompts import is_id

from ..requests.body import Body, MostTokens, Request, most_tokens
from ..requests.content_parts import Parts, allowed_tools, content_of, functions_among
from ..requests.parameters import read_parameters, set_options, whole_numbers
from ..requests.thinking import thinking_inputs
from ..requests.unknown_names import names_of

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for completions; a chat runs until the model ends it."""
RENAMED_FIELDS = {"max_new_tokens": "max_tokens", "num_return_sequences": "n", "json_schema": "response_format"}
MAX_PROMPTS = 256
"""Prompts of one request."""
MAX_MESSAGES = 4096

Count = Annotated[int, Field(ge=0)]


def read_prompts(given: object, *, most: int = MAX_PROMPTS) -> list[str | list[int]]:
    """Prompts in OpenAI's forms: a text, ids, or a list of at most `most` of either.

    Checked by hand, because pydantic would try each type on each item of a list of a million and report every failure.
    """
    is_one = isinstance(given, str) or (isinstance(given, list) and bool(given) and is_id(whole_numbers(given[0])))
    prompts = [given] if is_one else given
    if isinstance(prompts, list) and any(isinstance(each, list) and each and isinstance(each[0], float) for each in prompts):
        prompts = whole_numbers(prompts)
    if not isinstance(prompts, list):
        raise ValueError(f"should be text, token ids, or a list of either, found {shown(given)}")
    if not 1 <= len(prompts) <= most:
        raise ValueError(f"a request takes from 1 to {most} prompts, found {len(prompts):,}")
    for prompt in prompts:
        if not isinstance(prompt, str) and not (isinstance(prompt, list) and all(map(is_id, prompt))):
            raise ValueError("should be text, token ids, or a list of either")
    return prompts


Prompts = Annotated[
    list[str | list[int]],
    PlainValidator(read_prompts),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "integer", "array"]}}]}),
]


class StreamOptions(Body):
    """Options of a stream."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    """Send one more chunk at the end, with the token counts."""
    include_obfuscation: bool = False
    """Accepted and ignored: chunks are not padded to hide their lengths."""


class JSONSchema(Body):
    """A schema as OpenAI wraps it."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The required form of an answer's text."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchema | None = None


class GenerationRequest(Request):
    """The parameters that completions and chats share."""

    model_config = ConfigDict(extra="allow")
    n: Annotated[int, Field(ge=1, le=MOST_SEQUENCES)] | None = None
    """Number of texts for each prompt."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    response_format: ResponseFormat | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    def options(self, max_new_tokens: int) -> dict[str, Any]:
        """Options for `GenerationConfig`; raises `OptionError` for an unknown parameter."""
        options = {name: getattr(self, name) for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty")}
        options |= {"stop": self.stop, "max_new_tokens": max_new_tokens, "json_schema": self.requested_schema()}
        if self.response_format is not None and self.response_format.type == "json_schema" and self.response_format.json_schema:
            options["strict_schema"] = self.response_format.json_schema.strict
        options |= {"logit_bias": read_biases(self.logit_bias), "adapter": self.adapter}
        more, own = (self.model_extra or {}) | {"seed": self.seed}, names_of(type(self))
        return set_options(options | read_parameters(more, renamed=RENAMED_FIELDS, own=own))

    def requested_schema(self) -> dict[str, Any] | None:
        """The JSON Schema that the text must follow."""
        form = self.response_format
        if form is None or form.type == "text":
            return None
        if form.type == "json_object":
            return {"type": "object"}
        if form.json_schema is None:
            raise OptionError('response_format of the type json_schema needs {"json_schema": {"schema": {...}}}')
        return form.json_schema.json_schema


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    prompts: Prompts = Field(alias="prompt")
    """One or more, each a text or ids."""
    max_tokens: Annotated[int, Field(ge=-1)] | None = None
    """At most this many; -1: to the end of the context, as in llama.cpp."""
    best_of: Annotated[int, Field(ge=1, le=MOST_SEQUENCES)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_ALTERNATIVES)] | None = None
    """Return each token's log-probability, and this many of the most likely tokens."""
    echo: bool | None = None
    """Begin the text with the prompt; with `logprobs` and `max_tokens` 0 the prompt is scored."""
    suffix: str | None = None
    """Text that comes after the generated one; for models that were trained to fill it in."""
    suffix_first: bool | None = None
    """Whether the prompt has the suffix before the text; default: as the model's family was trained."""

    @property
    def draws(self) -> int:
        """Number of texts generated for each prompt; the most likely are returned."""
        return self.best_of or self.n or 1

    @property
    def texts(self) -> int:
        """Number of texts generated in all."""
        return len(self.prompts) * self.draws

    def options_of_call(self, context_length: int) -> dict[str, Any]:
        """Options for `GenerationConfig`."""
        most = DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        options = self.options(max(1, most_tokens(most, context_length)))
        return options | ({"logprobs": self.logprobs} if self.logprobs is not None else {})


class Message(Body):
    """One turn of a chat."""

    model_config = ConfigDict(extra="allow")
    role: str
    content: Parts = Field(default_factory=list)

    def as_data(self) -> dict[str, Any]:
        """The message as the client sent it, with its parts as one text."""
        return {**(self.model_extra or {}), "role": self.role, "content": content_of(self.content)}


class ChatInputs(Body):
    """What a chat's template gets in addition to the messages, by the names of OpenAI, vLLM and transformers."""

    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call."""
    documents: list[dict[str, Any]] | None = None
    """What an answer may cite."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the template, such as `{"enable_thinking": false}`."""
    add_generation_prompt: bool | None = None
    """Whether the prompt ends where an answer begins; by default it does, unless a message is continued."""
    continue_final_message: bool = False
    """The last message is the beginning of the answer, and is continued."""

    def template_inputs(self) -> dict[str, Any]:
        """The arguments of `Model.encode_chat`."""
        return {name: getattr(self, name) for name in ChatInputs.model_fields} | {"tools": functions_among(self.tools or ())}


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(GenerationRequest, ChatInputs):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    """OpenAI's older form of `tools`, of which one is called at a time."""
    function_call: str | dict[str, Any] | None = None
    """OpenAI's older form of `tool_choice`."""
    reasoning_effort: Effort | None = None
    """How long the model thinks; without effect if it does not think."""
    think: bool | Effort | None = None
    """Ollama's name for it, which Open WebUI sends to any server."""
    thinking_budget: Count | None = None
    """Most tokens of thinking."""
    max_tokens: MostTokens = None
    max_completion_tokens: MostTokens = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_ALTERNATIVES)] | None = None

    def turn_inputs(self, *, thinks: bool) -> dict[str, Any]:
        """The arguments of `ChatEncoder.turn`; `thinks`: whether the model thinks."""
        inputs = self.template_inputs()
        tools, choice, is_parallel = *allowed_tools(inputs["tools"], self.tool_choice), self.parallel_tool_calls
        if self.functions:
            tools = [*tools, *({"type": "function", "function": function} for function in self.functions)]
            choice, is_parallel = self.function_call or choice, False
        inputs |= {"tools": tools, "tool_choice": choice, "parallel_tool_calls": is_parallel}
        inputs |= {"thinking_budget": self.thinking_budget}
        asked = self.think if self.reasoning_effort is None else self.reasoning_effort
        if asked is None or not thinks:
            return inputs
        how: dict[str, Any] = {"enabled": asked} if isinstance(asked, bool) else {"effort": asked}
        return inputs | thinking_inputs(**how, budget=self.thinking_budget, variables=self.chat_template_kwargs)

    def options_of_call(self, context_length: int) -> dict[str, Any]:
        """Options for `GenerationConfig`."""
        if self.top_logprobs and self.logprobs is None:
            raise OptionError("top_logprobs cannot take effect without logprobs; add logprobs, or leave top_logprobs out")
        options = self.options(most_tokens(self.max_completion_tokens or self.max_tokens, context_length))
        return options | ({"logprobs": self.top_logprobs or 0} if self.logprobs else {})


class TokenizeRequest(Request, ChatInputs):
    """`POST /tokenize`: a text, or a chat rendered by its template."""

    prompt: str | None = None
    messages: Annotated[list[Message], Field(max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool = True


class DetokenizeRequest(Request):
    """`POST /detokenize`."""

    tokens: list[int]


def read_biases(biases: Mapping[str, float] | None) -> dict[int, float] | None:
    """Biases with integer keys, which are text in JSON; raises `OptionError` for a key that is no id."""
    if biases is None:
        return None
    if wrong := [key for key in biases if not DIGITS.fullmatch(key)]:
        raise OptionError(f"logit_bias names {shown(wrong[0])}, which is not a token id")
    return {int(key): bias for key, bias in biases.items()}
