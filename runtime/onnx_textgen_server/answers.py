"""What a generation looks like to OpenAI's clients: choices, chunks, log-probabilities, numbers of tokens."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal, Protocol

from onnx_textgen import Alternative, Model
from onnx_textgen.results import FinishReason
from onnx_textgen.text.tokenizer import StreamDecoder

from .jobs import Job

Kind = Literal["text_completion", "chat.completion"]
ENDINGS: dict[FinishReason, str] = {"eos": "stop", "stop": "stop", "loop": "stop"}
"""All others are a text that was cut off: `length`."""
Alternatives = Sequence[Sequence[Alternative]]


def ending(reason: FinishReason | None) -> str | None:
    """OpenAI's word for why a text ended."""
    return None if reason is None else ENDINGS.get(reason, "length")


@dataclasses.dataclass(frozen=True, slots=True)
class Envelope:
    """What all answers to one request have in common."""

    kind: Kind
    name: str
    """The model's, as clients call it."""
    fingerprint: str
    """Tells one set of weights from another."""
    id: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    def wrap(self, choices: list[dict[str, Any]], *, is_chunk: bool = False, **more: Any) -> dict[str, Any]:  # noqa: ANN401
        """A whole answer, or a chunk of one."""
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
    """The numbers of tokens, each prompt's once; those of a prompt that were not computed again are `cached`."""
    prompt_tokens, new = sum(len(each.prompt_ids) for each in job.firsts), sum(len(each.token_ids) for each in job.continuations)
    cached = sum(each.reused_tokens for each in job.firsts)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": new,
        "total_tokens": prompt_tokens + new,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class Answer(Protocol):
    """One request's answer: what it runs, and how that is told."""

    job: Job
    envelope: Envelope

    async def whole(self) -> dict[str, Any]:
        """Run to the end; the body of the answer."""

    def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Run, and give the chunks of a stream as they come."""


class Tokens:
    """Writes down tokens with their log-probabilities."""

    def __init__(self, model: Model) -> None:
        self.text = model.piece
        self.spell = model.tokenizer.piece_bytes if model.has_tokenizer else lambda token_id: model.piece(token_id).encode()

    def one(self, token_id: int, logprob: float) -> dict[str, Any]:
        """A token of a chat."""
        return {"token": self.text(token_id), "logprob": finite(logprob), "bytes": list(self.spell(token_id))}

    def of_chat(self, token_ids: Sequence[int], logprobs: Sequence[float], alternatives: Alternatives) -> dict[str, Any]:
        """`logprobs` of a chat's choice."""
        content = [
            {**self.one(token_id, logprob), "top_logprobs": [self.one(other.token_id, other.logprob) for other in others]}
            for token_id, logprob, others in zip(token_ids, logprobs, alternatives, strict=True)
        ]
        return {"content": content, "refusal": None}

    def of_completion(
        self, token_ids: Sequence[int], logprobs: Sequence[float | None], alternatives: Alternatives, place: Place
    ) -> dict[str, Any]:
        """`logprobs` of a completion's choice, whose tokens follow those that `place` has seen; a prompt's first has None."""
        tops = [
            {self.text(other.token_id): finite(other.logprob) for other in others}
            | ({} if own is None else {self.text(token_id): finite(own)})
            for token_id, own, others in zip(token_ids, logprobs, alternatives, strict=True)
        ]
        return {
            "tokens": [self.text(token_id) for token_id in token_ids],
            "token_logprobs": [None if own is None else finite(own) for own in logprobs],
            "top_logprobs": [top or None for top in tops],
            "text_offset": [place.move(token_id) for token_id in token_ids],
        }


def finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes -9999 for what cannot come."""
    return max(logprob, -9999.0)


class Place:
    """Where in a text its tokens begin, as they come: a token may have no text of its own, or share a character with others."""

    def __init__(self, model: Model, after: Sequence[int] = ()) -> None:
        """`after`: the ids before the text."""
        self.stream = StreamDecoder(model.tokenizer, after=after) if model.has_tokenizer else None
        self.offset = 0

    def move(self, token_id: int) -> int:
        """The number of characters before a token."""
        before = self.offset
        self.offset += len(self.stream.push(token_id)) if self.stream is not None else len(f"<{token_id}>")
        return before


def fingerprint(model: Model) -> str:
    """OpenAI's `system_fingerprint`."""
    return f"fp_{model.digest[:12]}"
