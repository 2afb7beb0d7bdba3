"""What all request bodies of all wire formats have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticKnownError

OPENAI = (
    "access_programs background_options client_metadata context_management include max_tool_calls metadata moderation prediction "
    "prompt_cache_key prompt_cache_options prompt_cache_retention reasoning safety_identifier service_tier store stream_options "
    "user verbosity web_search_options"
)
ANTHROPIC = (
    "anthropic_beta betas billing_policy cache_control compaction container context_management diagnostics fallback_credit_token "
    "fallbacks inference_geo mcp_servers metadata service_tier speed thread user_profile_id workspace_id"
)
OTHERS = (
    "cache_prompt id_slot include_reasoning include_usage keep_alive priority provider request_id return_progress route "
    "timings_per_token transforms ttl usage"
)
"""Those of Ollama, llama.cpp, vLLM, LM Studio and OpenRouter."""
ENGINE = (
    "embedding_only f16_kv logits_all low_vram main_gpu num_batch num_ctx num_gpu num_keep num_thread numa penalize_newline "
    "repeat_last_n tfs_z use_mlock use_mmap vocab_only"
)
"""Settings of Ollama's engine, which some programs send to any server."""
IGNORED = frozenset(f"{OPENAI} {ANTHROPIC} {OTHERS} {ENGINE}".split())
"""Fields that change no text, on every route that does not name them itself: how a request is billed, stored, routed or cached."""
DEFAULT_ANSWER_TOKENS = 4096
"""Where a request says nothing: long enough for thoughts and an answer, and a small model that never ends its text does not hold a
slot for the length of a large context."""
LONGEST_SALT = 256


class Body(BaseModel):
    """A part of a body. `null` is the default, where there is one."""

    @model_validator(mode="before")
    @classmethod
    def without_null(cls, given: Any) -> Any:  # noqa: ANN401 - pydantic checks it afterwards
        """Leave out what is null, except for fields that must be given."""
        if not isinstance(given, Mapping):
            return given
        needed = {field.alias or name for name, field in cls.model_fields.items() if field.is_required()}
        return {key: value for key, value in given.items() if value is not None or key in needed}


class Request(Body):
    """A whole body. An unknown parameter is an error, unless it is one of `IGNORED`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    model: str | None = None
    """A name from /v1/models; optional if the server has one model."""
    adapter: str | None = None
    """The LoRA adapter of the model; `model: "NAME:ADAPTER"` says the same."""
    cache_salt: Annotated[str, Field(max_length=LONGEST_SALT)] | None = None
    """Only requests of the same salt reuse each other's prompts; vLLM's name."""

    @model_validator(mode="before")
    @classmethod
    def without_ignored(cls, given: Any) -> Any:  # noqa: ANN401 - pydantic checks it afterwards
        """Leave out what changes no text."""
        if not isinstance(given, Mapping):
            return given
        own = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: value for key, value in given.items() if key not in IGNORED or key in own}


def most_tokens(asked: int | None, context_length: int) -> int:
    """How long an answer may be: as was asked, a negative number for the rest of the context, or `DEFAULT_ANSWER_TOKENS`.

    >>> most_tokens(40, 8192), most_tokens(-1, 8192), most_tokens(None, 8192), most_tokens(None, 512)
    (40, 8192, 4096, 512)
    """
    if asked is None:
        return min(DEFAULT_ANSWER_TOKENS, context_length)
    return context_length if asked < 0 else asked


def at_least_one(asked: int) -> int:
    """Return a number of tokens; raises pydantic's error for 0, and for negative numbers but -1."""
    if asked < 1 and asked != -1:
        raise PydanticKnownError("greater_than_equal", {"ge": 1})
    return asked


MostTokens = Annotated[int, AfterValidator(at_least_one)] | None
"""Most tokens of an answer; -1: to the end of the context, as in llama.cpp and LM Studio."""
