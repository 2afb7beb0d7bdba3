"""What clients may ask for: OpenAI's parameters, and every option of `GenerationConfig` by its own name.

What cannot take effect is refused, never passed over; only names that change nothing of an answer (`user`, `metadata`) are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from onnx_textgen.errors import OptionError
from onnx_textgen.options.checks import DIGITS, shown
from onnx_textgen.options.generation_config import MOST_ALTERNATIVES, MOST_SEQUENCES, OPTION_NAMES
from onnx_textgen.text.prompts import is_id

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's; a chat goes on to its end."""
HARMLESS = frozenset({"metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user"})
OTHER_NAMES = {"max_new_tokens": "max_tokens", "num_return_sequences": "n", "json_schema": "response_format"}
SEARCHES = frozenset({"best_of", "num_beams", "num_beam_groups", "diversity_penalty", "length_penalty", "early_stopping"})
"""Options of a search among whole texts, which is not made here."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "skip_special_tokens": (True,),
    "top_k": (-1,),
    "seed": (-1,),
}
"""Values by which clients ask for what happens anyway; those of `top_k` and `seed` are llama.cpp's."""
MOST_PROMPTS = 256
"""Prompts of one request."""
MOST_MESSAGES = 4096

Count = Annotated[int, Field(ge=0)]


def read_prompts(given: object) -> list[str | list[int]]:
    """Prompts as OpenAI takes them: a text, ids, or a list of either.

    Read by hand: pydantic would try each kind on each item of a list of a million, and tell of every one that fails.
    """
    is_one = isinstance(given, str) or (isinstance(given, list) and bool(given) and is_id(given[0]))
    prompts = [given] if is_one else given
    if not isinstance(prompts, list):
        raise ValueError(f"should be text, token ids, or a list of either, found {shown(given)}")
    if not 1 <= len(prompts) <= MOST_PROMPTS:
        raise ValueError(f"a request takes from 1 to {MOST_PROMPTS} prompts, found {len(prompts):,}")
    for prompt in prompts:
        if not isinstance(prompt, str) and not (isinstance(prompt, list) and all(map(is_id, prompt))):
            raise ValueError("should be text, token ids, or a list of either")
    return prompts


Prompts = Annotated[
    list[str | list[int]],
    PlainValidator(read_prompts),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "integer", "array"]}}]}),
]


class StreamOptions(BaseModel):
    """How a stream looks."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    """Send one more chunk at the end, with the numbers of tokens."""
    include_obfuscation: bool = False
    """Taken, and passed over: chunks are not padded to hide their lengths."""


class JSONSchema(BaseModel):
    """A schema as OpenAI wraps it."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)
    json_schema: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    """What an answer's text has to be."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchema | None = None


class Wish(BaseModel):
    """What a completion and a chat have in common."""

    model_config = ConfigDict(extra="allow")
    model: str | None = None
    """One that /v1/models lists; may be left out where there is one."""
    n: Annotated[int, Field(ge=1, le=MOST_SEQUENCES)] | None = None
    """Texts for each prompt."""
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
        """Whether a stream ends with the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    def options(self, max_new_tokens: int) -> dict[str, Any]:
        """Options of `GenerationConfig`; raises `OptionError` for a parameter that is none.

        At temperature 0 OpenAI's own `top_p` is passed over: clients send both.
        """
        options = {name: getattr(self, name) for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty")}
        options |= {"seed": self.seed, "stop": self.stop, "max_new_tokens": max_new_tokens, "json_schema": self.schema_wanted()}
        options["logit_bias"] = read_biases(self.logit_bias)
        for name, value in ((self.model_extra or {}) | {"seed": self.seed}).items():
            if value is None or name in HARMLESS or value in NEUTRAL.get(name, ()):
                options.pop(name, None)
            elif name in OTHER_NAMES:
                raise OptionError(f"{name} is called {OTHER_NAMES[name]} here; write that")
            elif name in OPTION_NAMES and name not in SEARCHES:
                options[name] = value
            else:
                raise OptionError(f"there is no parameter {shown(name)} here; leave it out")
        if options["temperature"] == 0:
            options["top_p"] = None
        return {name: value for name, value in options.items() if value is not None}

    def schema_wanted(self) -> dict[str, Any] | None:
        """The JSON Schema that the text has to follow."""
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return None
        if wanted.type == "json_object":
            return {"type": "object"}
        if wanted.json_schema is None:
            raise OptionError('response_format of the type json_schema needs {"json_schema": {"schema": {...}}}')
        return wanted.json_schema.json_schema


def no_suffix(given: str | None) -> str | None:
    """Nothing that a text is to be written before."""
    if given:
        raise ValueError("a text is written at the end of its prompt alone, not before a suffix; leave it out")
    return given


class CompletionRequest(Wish):
    """`POST /v1/completions`."""

    prompts: Prompts = Field(alias="prompt")
    """One or more, each a text or ids."""
    max_tokens: Count | None = None
    best_of: Annotated[int, Field(ge=1, le=MOST_SEQUENCES)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_ALTERNATIVES)] | None = None
    """Give each token's log-probability, and so many of the likeliest."""
    echo: bool | None = None
    """Begin the text with the prompt; with `logprobs` and `max_tokens` 0 it is scored."""
    suffix: Annotated[str | None, AfterValidator(no_suffix)] = None

    @property
    def drawn(self) -> int:
        """Texts that are written for each prompt; the likeliest are given back."""
        return self.best_of or self.n or 1

    @property
    def texts(self) -> int:
        """Texts that are written in all."""
        return len(self.prompts) * self.drawn

    def options_of_call(self) -> dict[str, Any]:
        """Options of `GenerationConfig`."""
        most = DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else max(1, self.max_tokens)
        return self.options(most) | ({"logprobs": self.logprobs} if self.logprobs is not None else {})


class TextPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="ignore")
    type: Literal["text"]
    text: str


def text_alone(given: object) -> object:
    """The content of a message, unless a part of it is an image, a sound or a file."""
    for part in given if isinstance(given, list) else ():
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            found = "one that is no object" if kind is None else f"one of the type {shown(kind)}"
            raise ValueError(f"the models here read text: a part should be of the type 'text', found {found}; leave it out")
    return given


class Message(BaseModel):
    """One turn of a chat."""

    model_config = ConfigDict(extra="allow")
    role: str
    content: Annotated[str | list[TextPart] | None, BeforeValidator(text_alone)] = None

    def as_data(self) -> dict[str, Any]:
        """The message as templates take it: OpenAI's `developer` is what they call `system`."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or [])
        more = {name: value for name, value in (self.model_extra or {}).items() if value is not None}
        return {**more, "role": "system" if self.role == "developer" else self.role, "content": content}


class ChatRequest(Wish):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_ALTERNATIVES)] | None = None

    def options_of_call(self, context_length: int) -> dict[str, Any]:
        """Options of `GenerationConfig`."""
        if self.top_logprobs and not self.logprobs:
            raise OptionError("top_logprobs cannot take effect without logprobs; give that too, or leave top_logprobs out")
        options = self.options(self.max_completion_tokens or self.max_tokens or context_length)
        return options | ({"logprobs": self.top_logprobs or 0} if self.logprobs else {})


class TokenizeRequest(BaseModel):
    """`POST /tokenize`: a text, or a chat as its template writes it."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(max_length=MOST_MESSAGES)] | None = None
    add_special_tokens: bool = True


class DetokenizeRequest(BaseModel):
    """`POST /detokenize`."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = None
    tokens: list[int]


def read_biases(biases: Mapping[str, float] | None) -> dict[int, float] | None:
    """JSON has text for keys; raises `OptionError` where one is no id."""
    if biases is None:
        return None
    if wrong := [key for key in biases if not DIGITS.fullmatch(key)]:
        raise OptionError(f"logit_bias names {shown(wrong[0])}, which is no token id")
    return {int(key): bias for key, bias in biases.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, as OpenAI's clients read it."""

    status: int
    message: str
    type: str = "invalid_request_error"
    code: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The body of the answer."""
        return {"error": {"message": self.message, "type": self.type, "param": None, "code": self.code}}
