"""Answers in OpenAI's format: choices, chunks, log-probabilities, token counts."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Sequence
from typing import Any, Literal

from onnx_textgen import Alternative, Model
from onnx_textgen.results import FinishReason
from onnx_textgen.text.stream_decoder import StreamDecoder

from ..serving.jobs import ENDED_EARLY, OWN_ENDS, Job, schema_note

Kind = Literal["text_completion", "chat.completion"]
Alternatives = Sequence[Sequence[Alternative]]


def ending(reason: FinishReason | None, *, calls: int = 0, follows_rule: bool | None = None) -> dict[str, Any]:
    """The fields of a choice that say why a text ended; `finish_reason` is None until then. `calls`: tool calls in the text.

    OpenAI has no `finish_reason` for a text that a deadline or the server's end cut off. It is `length`, and `stop_reason`, which
    vLLM's answers have too, says more.
    """
    if reason is None:
        return {"finish_reason": None}
    finish = "length" if reason not in OWN_ENDS else "tool_calls" if calls else "stop"
    more = {"stop_reason": reason} if reason in ENDED_EARLY else {}
    return {"finish_reason": finish, **more, **schema_note(reason, None if calls else follows_rule)}


@dataclasses.dataclass(frozen=True, slots=True)
class Envelope:
    """The fields that all answers to one request share."""

    kind: Kind
    name: str
    """The name by which clients call the model."""
    fingerprint: str
    """Identifies the weights."""
    id: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    def wrap(self, choices: list[dict[str, Any]], *, is_chunk: bool = False, **more: Any) -> dict[str, Any]:  # noqa: ANN401
        """A complete answer, or a chunk of a stream."""
        prefix = "cmpl" if self.kind == "text_completion" else "chatcmpl"
        return {
            "id": f"{prefix}-{self.id}",
            "object": f"{self.kind}.chunk" if is_chunk and self.kind == "chat.completion" else self.kind,
            "created": self.created,
            "model": self.name,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            **more,
        }


def usage(job: Job) -> dict[str, Any]:
    """Token counts. Each prompt counts once; `cached_tokens` are prompt tokens that came from the cache."""
    prompt_tokens, new = sum(each.prompt_tokens for each in job.firsts), sum(len(each.token_ids) for each in job.continuations)
    cached = sum(each.reused_tokens for each in job.firsts)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": new,
        "total_tokens": prompt_tokens + new,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class TokenFormatter:
    """Formats tokens with their log-probabilities."""

    def __init__(self, model: Model) -> None:
        self.piece = model.generator.opened.piece
        has_tokenizer = model.generator.opened.has_tokenizer
        self.piece_bytes = model.tokenizer.piece_bytes if has_tokenizer else lambda token_id: self.piece(token_id).encode()

    def one(self, token_id: int, logprob: float) -> dict[str, Any]:
        """A token in a chat's format."""
        return {"token": self.piece(token_id), "logprob": finite(logprob), "bytes": list(self.piece_bytes(token_id))}

    def of_chat(self, token_ids: Sequence[int], logprobs: Sequence[float], alternatives: Alternatives) -> dict[str, Any]:
        """The `logprobs` field of a chat's choice."""
        content = [
            {**self.one(token_id, logprob), "top_logprobs": [self.one(other.token_id, other.logprob) for other in others]}
            for token_id, logprob, others in zip(token_ids, logprobs, alternatives, strict=True)
        ]
        return {"content": content, "refusal": None}

    def of_completion(
        self, token_ids: Sequence[int], logprobs: Sequence[float | None], alternatives: Alternatives, offsets: TextOffsets
    ) -> dict[str, Any]:
        """The `logprobs` field of a completion's choice; `offsets` has passed the text before. A prompt's first token has None."""
        tops = [
            {self.piece(other.token_id): finite(other.logprob) for other in others}
            | ({} if own is None else {self.piece(token_id): finite(own)})
            for token_id, own, others in zip(token_ids, logprobs, alternatives, strict=True)
        ]
        return {
            "tokens": [self.piece(token_id) for token_id in token_ids],
            "token_logprobs": [None if own is None else finite(own) for own in logprobs],
            "top_logprobs": [top or None for top in tops],
            "text_offset": [offsets.advance(token_id) for token_id in token_ids],
        }


def finite(logprob: float) -> float:
    """A log-probability for JSON, which has no infinity: OpenAI writes -9999 for an impossible token."""
    return max(logprob, -9999.0)


class TextOffsets:
    """Character offsets of the tokens of a text. A token may have no text, or share a character with others."""

    def __init__(self, model: Model, after: Sequence[int] = ()) -> None:
        """`after`: ids that precede the text."""
        self.stream = StreamDecoder(model.tokenizer, after=after) if model.generator.opened.has_tokenizer else None
        self.offset = 0

    def advance(self, token_id: int) -> int:
        """Return the number of characters before a token, and move past it."""
        before = self.offset
        self.offset += len(self.stream.push(token_id)) if self.stream is not None else len(f"<{token_id}>")
        return before


def fingerprint(model: Model) -> str:
    """OpenAI's `system_fingerprint`."""
    return f"fp_{model.generator.opened.digest[:12]}"
