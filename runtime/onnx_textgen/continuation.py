"""One text in the making: chooses its next token, turns tokens into text, and knows when to end.

The same object serves a stream, a row of a batch and a chat turn; running the model is left to `textgen`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from .decoder import Logits
from .generation_config import GenerationConfig
from .results import Chunk, FinishReason, Generation, Stats
from .sampling import make_sampler
from .stops import StopMatcher
from .tokenizer import StreamDecoder, TextTokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What ends a text besides the caller's wishes."""

    eos_ids: frozenset[int]
    context_length: int


class Continuation:
    """The tokens after one prompt."""

    def __init__(
        self, tokenizer: TextTokenizer | None, prompt_ids: Sequence[int], config: GenerationConfig, limits: Limits
    ) -> None:
        assert config.seed is not None, "the seed is drawn before"
        self.prompt_ids, self.config, self.limits, self.seed = tuple(prompt_ids), config, limits, config.seed
        self.token_ids: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.sample = make_sampler(config)
        self.stream = StreamDecoder(tokenizer, after=prompt_ids) if tokenizer is not None else None
        self.stops = StopMatcher(config.stop)
        self.reused_tokens = 0
        self.prefill_seconds = 0.0
        self.started = self.first_token = self.ended = time.perf_counter()

    def choose(self, logits: Logits) -> int:
        """The next token id for logits [vocabulary]."""
        return self.sample(logits, self.seed, 0, len(self.token_ids))

    def accept(self, token_id: int, logits: Logits) -> Chunk:
        """Append a token; the chunk says what text it made certain and, if it was the last, why."""
        self.ended = time.perf_counter()
        if not self.token_ids:
            self.first_token = self.ended
        if token_id in self.limits.eos_ids:
            return self.finish("eos")
        self.token_ids.append(token_id)
        text, matched = self.stops.push(self.stream.push(token_id) if self.stream else "")
        chunk = Chunk(text, (token_id,))
        if self.config.logprobs is not None:
            chunk = with_alternatives(chunk, token_id, logits, self.config.logprobs)
        if matched is not None:
            return self.finish("stop", chunk)
        if len(self.token_ids) >= self.config.max_new_tokens:
            return self.finish("length", chunk)
        if len(self.prompt_ids) + len(self.token_ids) >= self.limits.context_length:
            return self.finish("context", chunk)
        self.text += text
        return chunk

    def finish(self, reason: FinishReason, chunk: Chunk | None = None) -> Chunk:
        """The last chunk: what was held back, unless a stop string cut it off."""
        chunk = chunk or Chunk("", ())
        text = chunk.text
        if reason != "stop":
            text += self.stops.push(self.stream.flush() if self.stream else "")[0] + self.stops.flush()
            if self.stops.matched is not None:  # decided only now that no more text can come
                reason = "stop"
        self.text += text
        self.finish_reason = reason
        return dataclasses.replace(chunk, text=text, finish_reason=reason, stats=self.stats())

    def stats(self) -> Stats:
        """The numbers so far."""
        prompt, new = len(self.prompt_ids), len(self.token_ids)
        prefill, decode = self.prefill_seconds, self.ended - self.first_token
        return Stats(
            prompt_tokens=prompt,
            reused_tokens=self.reused_tokens,
            generated_tokens=new,
            prefill_seconds=prefill,
            first_token_seconds=self.first_token - self.started,
            total_seconds=self.ended - self.started,
            prefill_tokens_per_second=(prompt - self.reused_tokens) / prefill if prefill > 0 else 0.0,
            decode_tokens_per_second=(new - 1) / decode if new > 1 and decode > 0 else 0.0,
            seed=self.seed,
        )

    def result(self) -> Generation:
        """The finished text."""
        assert self.finish_reason is not None, "the text has not ended"
        return Generation(self.text, tuple(self.token_ids), self.finish_reason, self.stats(), self.prompt_ids, self.config)


def with_alternatives(chunk: Chunk, token_id: int, logits: Logits, count: int) -> Chunk:
    """The chunk with the model's own probabilities at its token's place."""
    shifted = logits.astype(np.float64) - logits.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    best = np.argsort(-logprobs, kind="stable")[:count]
    alternatives = tuple((int(i), float(np.exp(logprobs[i]))) for i in best)
    return dataclasses.replace(chunk, logprobs=(float(logprobs[token_id]),), alternatives=(alternatives,))
