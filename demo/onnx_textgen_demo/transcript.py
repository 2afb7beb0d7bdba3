"""What one generation has brought so far: its text, and for every token its probability and its rivals.

Collects the chunks of `Model.stream` and counts; how that looks on the page is `view`'s business.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx_textgen import Chunk, Stats


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """One generated token."""

    piece: str
    """What a person sees for it, leading space included."""
    probability: float
    """Under the model alone, before temperature and the rest of the sampling chain."""
    rivals: tuple[tuple[str, float], ...]
    """The likeliest tokens at its place with their probabilities, likewise, the likeliest first."""
    rank: int | None
    """Where the token itself stands in `rivals`; None if it is not among them."""


@dataclasses.dataclass(slots=True)
class Transcript:
    """The tokens of one generation, in order, and its clock."""

    piece: Callable[[int], str]
    """Token id -> what a person sees for it."""
    seed: int
    text: str = ""
    tokens: list[Token] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    stats: Stats | None = None
    """Exact numbers; they come with the last chunk."""
    started: float = dataclasses.field(default_factory=time.perf_counter)
    first_token: float | None = None
    latest_token: float | None = None

    def add(self, chunk: Chunk) -> None:
        """Take in the next chunk."""
        self.text += chunk.text
        for token_id, logprob, alternatives in zip(chunk.token_ids, chunk.logprobs, chunk.alternatives, strict=True):
            rivals = tuple((self.piece(rival.token_id), math.exp(rival.logprob)) for rival in alternatives)
            rank = next((rank for rank, rival in enumerate(alternatives) if rival.token_id == token_id), None)
            self.tokens.append(Token(self.piece(token_id), math.exp(logprob), rivals, rank))
        if chunk.token_ids:
            self.latest_token = time.perf_counter()
            self.first_token = self.first_token or self.latest_token
        self.finish_reason = chunk.finish_reason
        self.stats = chunk.stats

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
        return (len(self.tokens) - 1) / (self.latest_token - self.first_token)
