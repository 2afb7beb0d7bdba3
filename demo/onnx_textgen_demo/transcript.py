"""What one generation has brought so far: its text, and for every token its probability and its rivals.

Collects the chunks of `Model.stream` and counts; how that looks on the page is `view`'s business.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import TYPE_CHECKING

from onnx_textgen.tokenizer import StreamDecoder

if TYPE_CHECKING:
    from onnx_textgen import Chunk, Model, Stats


@dataclasses.dataclass(frozen=True, slots=True)
class Rival:
    """A token that the model weighed at some place."""

    token_id: int
    piece: str
    """What a person sees for it, leading space included."""
    probability: float
    """Under the model alone, before temperature and the rest of the sampling chain."""


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """One generated token."""

    token_id: int
    piece: str
    """As of a rival."""
    probability: float
    """Likewise."""
    rivals: tuple[Rival, ...]
    """The likeliest tokens at its place, the likeliest first."""

    @property
    def rank(self) -> int | None:
        """Where the token itself stands in `rivals`; None if it is not among them."""
        return next((rank for rank, rival in enumerate(self.rivals) if rival.token_id == self.token_id), None)


@dataclasses.dataclass(slots=True)
class Transcript:
    """The tokens of one generation, in order, and its clock."""

    model: Model
    seed: int
    prompt_ids: list[int] = dataclasses.field(default_factory=list)
    text: str = ""
    tokens: list[Token] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    stats: Stats | None = None
    """Exact numbers; they come with the last chunk."""
    started: float = dataclasses.field(default_factory=time.perf_counter)
    first_token: float | None = None
    latest_token: float | None = None
    taken_over: int = 0
    """Tokens that were there before the clock started, see `branch`."""

    def add(self, chunk: Chunk) -> None:
        """Take in the next chunk."""
        self.text += chunk.text
        piece = self.model.tokenizer.piece
        for token_id, logprob, alternatives in zip(chunk.token_ids, chunk.logprobs, chunk.alternatives, strict=True):
            rivals = tuple(Rival(each.token_id, piece(each.token_id), math.exp(each.logprob)) for each in alternatives)
            self.tokens.append(Token(token_id, piece(token_id), math.exp(logprob), rivals))
        if chunk.token_ids:
            self.latest_token = time.perf_counter()
            self.first_token = self.first_token or self.latest_token
        self.finish_reason = chunk.finish_reason
        self.stats = chunk.stats

    def branch(self, position: int, rank: int) -> Transcript:
        """Another text: this one up to a position (1 = first generated token), where it takes the rival of that rank instead.

        Where the rival is an end of text, the other text ends there.
        """
        token = self.tokens[position - 1]
        rival = token.rivals[rank]
        other = Transcript(self.model, self.seed, self.prompt_ids, tokens=self.tokens[: position - 1])
        if rival.token_id in self.model.manifest.eos_ids:
            other.finish_reason = "eos"
        else:
            other.tokens.append(Token(rival.token_id, rival.piece, rival.probability, token.rivals))
        other.taken_over = len(other.tokens)
        decoder = StreamDecoder(self.model.tokenizer, after=self.prompt_ids)
        other.text = "".join(decoder.push(each.token_id) for each in other.tokens)
        return other

    @property
    def token_ids(self) -> list[int]:
        """Prompt and text."""
        return [*self.prompt_ids, *(token.token_id for token in self.tokens)]

    @property
    def first_token_seconds(self) -> float | None:
        """From the request to the first token; None before it."""
        if self.stats:
            return self.stats.first_token_seconds
        return self.first_token - self.started if self.first_token else None

    @property
    def tokens_per_second(self) -> float | None:
        """Speed after the first token, which alone waits for the prompt; None before the second."""
        if self.stats:
            return self.stats.decode_tokens_per_second
        if not self.first_token or not self.latest_token or self.latest_token <= self.first_token:
            return None
        return (len(self.tokens) - self.taken_over - 1) / (self.latest_token - self.first_token)
