"""What one generation has brought so far: its text, and for every token its probability and its rivals.

Collects the chunks of `Model.stream` and counts; how that looks on the page is `view`'s business.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import TYPE_CHECKING

from onnx_textgen.text.tokenizer import StreamDecoder, Streaming

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
    text: str = ""
    """What it adds to the text; nothing where it is part of a character that a later one completes, or has no text at all."""

    @property
    def rank(self) -> int | None:
        """Where the token itself stands in `rivals`; None if it is not among them."""
        return next((rank for rank, rival in enumerate(self.rivals) if rival.token_id == self.token_id), None)


@dataclasses.dataclass(slots=True)
class Transcript:
    """The tokens of one generation, in order, and its clock."""

    model: Model
    seed: int
    prompt: str = ""
    prompt_ids: list[int] = dataclasses.field(default_factory=list)
    tokens: list[Token] = dataclasses.field(default_factory=list)
    place: int | None = None
    """The token that is looked at, 1 = the first; None: the last one."""
    is_followed: bool = False
    """Whether the model is writing it, or has."""
    finish_reason: str | None = None
    problem: str | None = None
    """What went wrong, where something did."""
    stats: Stats | None = None
    """Exact numbers; they come with the last chunk."""
    started: float = dataclasses.field(default_factory=time.perf_counter)
    first_token: float | None = None
    latest_token: float | None = None
    taken_over: int = 0
    """Tokens that were there before the clock started, see `branch`."""
    decoder: StreamDecoder | None = None
    """Turns the tokens to text; begins with the first of them."""
    undecided: int = 0
    """So many of the last tokens have no text yet."""

    def add(self, chunk: Chunk) -> None:
        """Take in the next chunk."""
        piece = self.model.tokenizer.piece
        for token_id, logprob, alternatives in zip(chunk.token_ids, chunk.logprobs, chunk.alternatives, strict=True):
            rivals = tuple(Rival(each.token_id, piece(each.token_id), math.exp(each.logprob)) for each in alternatives)
            self.take(Token(token_id, piece(token_id), math.exp(logprob), rivals))
        if chunk.token_ids:
            self.latest_token = time.perf_counter()
            self.first_token = self.first_token or self.latest_token
        self.stats = chunk.stats
        if chunk.finish_reason:
            self.end(chunk.finish_reason)

    def take(self, token: Token) -> None:
        """Append a token, with the text that is certain now: its own, and that of the ones before which waited for it."""
        tokenizer = self.model.tokenizer
        self.decoder = self.decoder or StreamDecoder(tokenizer, after=self.prompt_ids)
        # Where only the whole tells, the text would come at the end, in one piece.
        text = token.piece if tokenizer.streaming is Streaming.WHOLE else self.decoder.push(token.token_id)
        if text and self.undecided and token.piece and text.endswith(token.piece):
            self.settle(text.removesuffix(token.piece))
            text = token.piece
        self.undecided = 0 if text else self.undecided + 1
        self.tokens.append(dataclasses.replace(token, text=text))

    def settle(self, text: str) -> None:
        """Give the last token the text that it was still owed."""
        if text:
            self.tokens[-1] = dataclasses.replace(self.tokens[-1], text=self.tokens[-1].text + text)

    def end(self, reason: str, *, problem: str | None = None) -> None:
        """No token comes any more."""
        if self.finish_reason is None:
            self.finish_reason, self.problem = reason, problem
            if self.decoder and self.tokens:
                self.settle(self.decoder.flush())

    def branch(self, position: int, rank: int) -> Transcript:
        """Another text: this one up to a position (1 = first generated token), where it takes the rival of that rank instead.

        Where the rival is an end of text, the other text ends there.
        """
        token = self.tokens[position - 1]
        rival = token.rivals[rank]
        other = Transcript(self.model, self.seed, self.prompt, self.prompt_ids)
        for each in self.tokens[: position - 1]:
            other.take(dataclasses.replace(each, text=""))
        if rival.token_id in self.model.manifest.eos_ids:
            other.end("eos")
        else:
            other.take(Token(rival.token_id, rival.piece, rival.probability, token.rivals))
        other.taken_over = len(other.tokens)
        return other

    @property
    def text(self) -> str:
        """All that the tokens add."""
        return "".join(token.text for token in self.tokens)

    @property
    def looked_at(self) -> int:
        """The token whose rivals are shown, 1 = the first; 0 where there is none."""
        return min(self.place or len(self.tokens), len(self.tokens))

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
