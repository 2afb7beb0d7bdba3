"""The tokens of one generation so far: their text, probabilities and alternatives.

Collects the chunks of `Model.stream` and measures speed; `view` draws them.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import TYPE_CHECKING

from onnx_textgen.text.stream_decoder import StreamDecoder
from onnx_textgen.text.tokenizer_json import Streaming

from .encoder_decoders import is_encoder_decoder

if TYPE_CHECKING:
    from onnx_textgen import Chunk, Model, Stats


@dataclasses.dataclass(frozen=True, slots=True)
class Alternative:
    """A token that the model could have chosen at a position."""

    token_id: int
    piece: str
    """Its text with the leading space."""
    probability: float
    """The model's probability, before temperature and the rest of the sampling chain."""


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """One generated token."""

    token_id: int
    piece: str
    """Its text with the leading space."""
    probability: float
    """The model's probability, before temperature and the rest of the sampling chain."""
    alternatives: tuple[Alternative, ...]
    """The most likely tokens at its position, the most likely first."""
    text: str = ""
    """The text that it adds; empty if a later token completes its character, or if it has no text."""

    @property
    def rank(self) -> int | None:
        """Index of the token itself in `alternatives`; None if it is not among them."""
        return next((rank for rank, alternative in enumerate(self.alternatives) if alternative.token_id == self.token_id), None)


@dataclasses.dataclass(slots=True)
class Transcript:
    """The tokens of one generation, in order, and its timing."""

    model: Model
    seed: int
    prompt: str = ""
    prompt_ids: list[int] = dataclasses.field(default_factory=list)
    """Ids that the text follows: those of the prompt, or of an encoder-decoder, whose prompt is a source, its start ids."""
    tokens: list[Token] = dataclasses.field(default_factory=list)
    selected: int | None = None
    """The token that the reader selected, 1 = the first; None: the last one."""
    has_started: bool = False
    """Whether the model has begun to write it."""
    finish_reason: str | None = None
    problem: str | None = None
    """The error message, if the generation failed."""
    stats: Stats | None = None
    """Exact figures, from the last chunk."""
    started: float = dataclasses.field(default_factory=time.perf_counter)
    first_token: float | None = None
    latest_token: float | None = None
    reused: int = 0
    """Tokens that were copied before timing started, see `branch`."""
    decoder: StreamDecoder | None = None
    """Decodes the tokens; made for the first of them."""
    pending: int = 0
    """Number of tokens at the end that have no text yet."""

    @property
    def has_source(self) -> bool:
        """Whether the prompt is the source of a text, and not its beginning."""
        return is_encoder_decoder(self.model)

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk."""
        piece = self.model.tokenizer.piece
        for token_id, logprob, others in zip(chunk.token_ids, chunk.logprobs, chunk.alternatives, strict=True):
            alternatives = tuple(Alternative(each.token_id, piece(each.token_id), math.exp(each.logprob)) for each in others)
            self.append(Token(token_id, piece(token_id), math.exp(logprob), alternatives))
        if chunk.token_ids:
            self.latest_token = time.perf_counter()
            self.first_token = self.first_token or self.latest_token
        self.stats = chunk.stats
        if chunk.finish_reason:
            self.end(chunk.finish_reason)

    def append(self, token: Token) -> None:
        """Append a token with the text that is now certain: its own, and that of earlier tokens that waited for it."""
        tokenizer = self.model.tokenizer
        self.decoder = self.decoder or StreamDecoder(tokenizer, after=self.prompt_ids)
        # A tokenizer that decodes only whole texts would give the text at the end; show pieces instead.
        text = token.piece if tokenizer.streaming is Streaming.WHOLE else self.decoder.push(token.token_id)
        if text and self.pending and token.piece and text.endswith(token.piece):
            self.settle(text.removesuffix(token.piece))
            text = token.piece
        self.pending = 0 if text else self.pending + 1
        self.tokens.append(dataclasses.replace(token, text=text))

    def settle(self, text: str) -> None:
        """Add text to the last token that completes its characters."""
        if text:
            self.tokens[-1] = dataclasses.replace(self.tokens[-1], text=self.tokens[-1].text + text)

    def end(self, reason: str, *, problem: str | None = None) -> None:
        """Finish: no more tokens follow."""
        if self.finish_reason is None:
            self.finish_reason, self.problem = reason, problem
            if self.decoder and self.tokens:
                self.settle(self.decoder.flush())

    def branch(self, position: int, rank: int) -> Transcript:
        """A new text: this one up to a position (1 = first generated token), then the alternative of that rank.

        If the alternative is an end token, the new text ends there.
        """
        token = self.tokens[position - 1]
        alternative = token.alternatives[rank]
        other = Transcript(self.model, self.seed, self.prompt, self.prompt_ids)
        for each in self.tokens[: position - 1]:
            other.append(dataclasses.replace(each, text=""))
        if alternative.token_id in self.model.manifest.eos_ids:
            other.end("eos")
        else:
            other.append(Token(alternative.token_id, alternative.piece, alternative.probability, token.alternatives))
        other.reused = len(other.tokens)
        return other

    @property
    def text(self) -> str:
        """The text of all tokens."""
        return "".join(token.text for token in self.tokens)

    @property
    def selected_position(self) -> int:
        """The token whose alternatives are shown, 1 = the first; 0 without tokens."""
        return min(self.selected or len(self.tokens), len(self.tokens))

    @property
    def token_ids(self) -> list[int]:
        """Ids of prompt and text."""
        return [*self.prompt_ids, *(token.token_id for token in self.tokens)]

    @property
    def first_token_seconds(self) -> float | None:
        """Seconds from the request to the first token; None before it."""
        if self.stats:
            return self.stats.first_token_seconds
        return self.first_token - self.started if self.first_token else None

    @property
    def tokens_per_second(self) -> float | None:
        """Decode speed, without the first token, which includes the prompt; None before the second."""
        if self.stats:
            return self.stats.decode_tokens_per_second
        if not self.first_token or not self.latest_token or self.latest_token <= self.first_token:
            return None
        return (len(self.tokens) - self.reused - 1) / (self.latest_token - self.first_token)
