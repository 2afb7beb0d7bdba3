"""One text in the making: chooses its next token, turns tokens into text, and knows when to end.

The same object serves a stream, a row of a batch and a chat turn; running the model is left to the `scheduler`.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from ..inference.graph_runner import Logits
from ..inference.scoring import likeliest, mean_logprob, target_logprobs
from ..options.generation_config import GenerationConfig
from ..results import Alternative, Chunk, FinishReason, Generation, Stats
from ..sampling.grammar import Constraint
from ..sampling.repetition_guard import LoopGuard
from ..sampling.sampler import Chooser
from ..speculation.drafter import Drafter
from ..speculation.verification import Verifier
from ..text.stop_strings import StopMatcher
from ..text.stream_decoder import StreamDecoder
from ..text.tokenizer import TextTokenizer

MOST_ATTEMPTS = 8
"""Draws that the loop guard makes for one token."""
MOST_ESCAPES = 16
"""How often the loop guard leads one text out of a circle before it ends it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What ends a text besides the caller's wishes."""

    eos_ids: frozenset[int]
    context_length: int
    vocab_size: int

    def longest(self, prompt_tokens: int, new_tokens: int) -> int:
        """Tokens that such a text has at most at a time."""
        return min(prompt_tokens + new_tokens, self.context_length)


class Continuation:
    """The tokens after one prompt."""

    def __init__(
        self,
        tokenizer: TextTokenizer | None,
        prompt_ids: Sequence[int],
        config: GenerationConfig,
        limits: Limits,
        *,
        sample: int = 0,
        constraint: Constraint | None = None,
        drafter: Drafter | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        """`verifier`: what checks the guesses; None: a run of the model as of any several tokens."""
        self.tokenizer, self.prompt_ids, self.config, self.limits = tokenizer, tuple(prompt_ids), config, limits
        self.constraint = constraint
        self.token_ids: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.chooser = Chooser(
            config,
            prompt_ids=prompt_ids,
            eos_ids=limits.eos_ids,
            piece=tokenizer.piece if tokenizer is not None else None,
            sample=sample,
            constraint=constraint,
        )
        self.stream = StreamDecoder(tokenizer, after=prompt_ids) if tokenizer is not None else None
        self.stops = StopMatcher(config.stop)
        self.guard = LoopGuard() if config.loop_guard != "off" else None
        self.escapes = 0
        """How often the text was led out of a circle."""
        self.forced: deque[int] = deque()
        """Tokens that the rule leaves no choice about."""
        self.unfed: list[int] = []
        self.drafter, self.verifier = drafter, verifier
        self.verified: deque[tuple[int, Logits]] = deque()
        """Guessed tokens that were fed, each with the logits behind it; the text may still go another way."""
        self.right_guesses = 0
        """Of the draft that is being taken up."""
        self.is_scored = config.logprobs is not None or (config.gives_several and config.num_beams == 1)
        """Whether the log-probability of every token counts, the id that ends the text included."""
        self.scored: list[float] = []
        """These log-probabilities, where they do."""
        self.logprobs: list[float] = []
        self.alternatives: list[tuple[Alternative, ...]] = []
        self.end: Chunk | None = None
        """The id that ended the text, which is no part of it, with its log-probability; where these are asked for."""
        self.reused_tokens = 0
        self.prefill_seconds = 0.0
        self.started = self.first_token = self.ended = time.perf_counter()

    def choose(self, logits: Logits) -> int:
        """The next token id for logits [vocabulary]."""
        if self.forced:
            return self.forced.popleft()
        circling = self.guard.next_in_circle if self.guard else None
        if circling is None:
            return self.chooser.choose(logits, self.token_ids)
        self.escapes += 1
        if self.config.loop_guard == "penalise":
            return self.chooser.choose(logits, self.token_ids, banned=[circling])
        attempts = (self.chooser.choose(logits, self.token_ids, attempt=attempt) for attempt in range(1, MOST_ATTEMPTS + 1))
        return next((token_id for token_id in attempts if token_id != circling), circling)

    def accept(self, token_id: int, logits: Logits | None = None) -> Chunk:
        """Append a token; the chunk says what text it made certain and, if it was the last, why.

        `logits` [vocabulary] are those that it was chosen by; without them there are no log-probabilities.
        """
        self.ended = time.perf_counter()
        if not self.token_ids:
            self.first_token = self.ended
        if self.is_scored and logits is not None:
            self.scored.append(float(target_logprobs(logits[None], np.array([token_id]))[0]))
        if token_id in self.limits.eos_ids:
            if self.config.logprobs is not None and logits is not None:
                self.end = self.with_logprobs(Chunk("", (token_id,)), logits, self.config.logprobs)
            return self.finish("eos")
        self.token_ids.append(token_id)
        self.unfed.append(token_id)
        text, matched = self.stops.push(self.stream.push(token_id) if self.stream else "")
        chunk = Chunk(text, (token_id,))
        if self.config.logprobs is not None and logits is not None:
            chunk = self.with_logprobs(chunk, logits, self.config.logprobs)
            self.logprobs += chunk.logprobs
            self.alternatives += chunk.alternatives
        if matched is not None:
            return self.finish("stop", chunk)
        if reason := self.reason_to_end(token_id) or self.stopped_by_caller(text):
            return self.finish(reason, chunk)
        self.text += text
        return chunk

    def stopped_by_caller(self, text: str) -> FinishReason | None:
        """Whether the caller's own function ends the text, of which `text` has just become certain."""
        criterion = self.config.stopping_criterion
        ends = criterion is not None and criterion([*self.prompt_ids, *self.token_ids], self.text + text)
        return "stop" if ends else None

    def reason_to_end(self, token_id: int) -> FinishReason | None:
        """Why the text ends after this token, if it does."""
        if self.constraint is not None:
            self.constraint.accept(token_id)
            if self.constraint.is_done:
                return "eos"  # the rule allows nothing else
            if not self.forced:
                self.forced.extend(self.constraint.forced())
        if len(self.token_ids) >= self.config.max_new_tokens:
            return "length"
        if self.config.context_limit != "shift" and len(self.prompt_ids) + len(self.token_ids) >= self.limits.context_length:
            return "context"
        if self.guard is not None:
            self.guard.push(token_id)
            most = 0 if self.config.loop_guard == "stop" else MOST_ESCAPES
            if self.guard.next_in_circle is not None and self.escapes >= most:
                return "loop"
        return None

    @property
    def is_forced(self) -> bool:
        """Whether the next token is known already, so that it needs no logits."""
        return bool(self.forced) and not self.is_scored

    @property
    def kept_tokens(self) -> int:
        """Tokens at the beginning that the text never forgets."""
        return len(self.prompt_ids) if self.config.n_keep < 0 else min(self.config.n_keep, len(self.prompt_ids))

    @property
    def most_tokens(self) -> int:
        """Prompt and text at their longest."""
        return self.limits.longest(len(self.prompt_ids), self.config.max_new_tokens)

    def take_unfed(self) -> list[int]:
        """The tokens that were appended and that the model has not seen yet; they count as seen then."""
        taken, self.unfed = self.unfed, []
        return taken

    def finish(self, reason: FinishReason, chunk: Chunk | None = None) -> Chunk:
        """The last chunk: what was held back, unless a stop string cut it off."""
        chunk = chunk or Chunk("", ())
        text = chunk.text + self.stops.push(self.stream.flush() if self.stream else "")[0] + self.stops.flush()
        if self.stops.matched is not None:  # perhaps decided only now that no more text can come
            reason = "stop"
        self.text += text
        self.finish_reason = reason
        return dataclasses.replace(chunk, text=text, finish_reason=reason, stats=self.stats(), follows_rule=self.follows_rule)

    def with_logprobs(self, chunk: Chunk, logits: Logits, count: int) -> Chunk:
        """The chunk with what the model itself thought at its token's place."""
        piece = self.tokenizer.piece if self.tokenizer is not None else "<{}>".format
        alternatives = likeliest(logits, count, piece) if count else ()
        return dataclasses.replace(chunk, logprobs=(self.scored[-1],), alternatives=(alternatives,))

    @property
    def score(self) -> float:
        """What a scored text is compared by with other texts of its prompt: its mean log-probability per token."""
        return mean_logprob(self.scored)

    def close(self) -> None:
        """Let go of what only a text in the making needs."""
        if self.drafter is not None:
            self.drafter.close()

    @property
    def follows_rule(self) -> bool | None:
        """Whether the text so far follows its rule to the end; None without one."""
        return None if self.constraint is None else self.constraint.is_satisfied

    def fresh(self) -> Continuation:
        """Another text after the same prompt, with no token yet and the same clock."""
        rule = self.constraint.fork() if self.constraint is not None else None
        other = Continuation(self.tokenizer, self.prompt_ids, self.config, self.limits, constraint=rule)
        other.reused_tokens, other.prefill_seconds, other.started = self.reused_tokens, self.prefill_seconds, self.started
        return other

    def stops_at(self, token_ids: Sequence[int]) -> bool:
        """Whether a stop string, or the caller's own function, ends the text of some new ids."""
        criterion = self.config.stopping_criterion
        if criterion is None and (self.tokenizer is None or not self.config.stop):
            return False
        text = ""
        if self.tokenizer is not None:
            stream = StreamDecoder(self.tokenizer, after=self.prompt_ids)
            text = "".join(stream.push(token_id) for token_id in token_ids) + stream.flush()
        return any(stop in text for stop in self.config.stop) or bool(criterion and criterion([*self.prompt_ids, *token_ids], text))

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
            seed=self.config.seed or 0,
            drafted_tokens=self.drafter.drafted if self.drafter else 0,
            accepted_tokens=self.drafter.accepted if self.drafter else 0,
        )

    def result(self) -> Generation:
        """The finished text; one of several for its prompt has its score."""
        assert self.finish_reason is not None, "the text has not ended"
        return Generation(
            text=self.text,
            token_ids=tuple(self.token_ids),
            finish_reason=self.finish_reason,
            stats=self.stats(),
            prompt_ids=self.prompt_ids,
            config=self.config,
            logprobs=tuple(self.logprobs),
            alternatives=tuple(self.alternatives),
            follows_rule=self.follows_rule,
            score=self.score if self.config.gives_several else None,
        )
