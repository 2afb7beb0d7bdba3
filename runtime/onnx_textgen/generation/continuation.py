"""One text during its generation: chooses the next token, turns tokens into text, and decides when to end.

The same object serves a stream, a row of a batch and a chat turn. `scheduler` runs the model.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from ..images.image_rows import ReadImage, without_images
from ..inference.graph_runner import Logits
from ..inference.scoring import mean_logprob, most_likely_tokens, target_logprobs
from ..inference.verifier import Verifier
from ..options.generation_config import GenerationConfig
from ..results import Alternative, Chunk, FinishReason, Generation, Stats
from ..sampling.repetition_guard import LoopGuard
from ..sampling.sampler import Chooser
from ..sampling.thinking import Rule
from ..speculation.drafter import Drafter
from ..text.stop_strings import StopMatcher
from ..text.stream_decoder import StreamDecoder
from ..text.tokenizer import TextTokenizer

MOST_ATTEMPTS = 8
"""Draws that the loop guard makes for one token."""
MOST_ESCAPES = 16
"""How often the loop guard leads a text out of a loop before it ends the text."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Limits that end a text, apart from the caller's options."""

    eos_ids: frozenset[int]
    context_length: int
    vocab_size: int

    def longest(self, prompt_tokens: int, new_tokens: int) -> int:
        """The most tokens that such a text has in its cache at a time."""
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
        constraint: Rule | None = None,
        drafter: Drafter | None = None,
        verifier: Verifier | None = None,
        source_ids: Sequence[int] = (),
    ) -> None:
        """`verifier`: checks drafts; None: an ordinary run of the model checks them.

        `source_ids`: what the encoder of an encoder-decoder reads; empty for a decoder.
        """
        self.tokenizer, self.prompt_ids, self.config, self.limits = tokenizer, tuple(prompt_ids), config, limits
        self.images: Sequence[ReadImage] = ()
        """The pictures in the prompt, which are held as long as it may be fed."""
        self.written_ids = prompt_ids = without_images(self.prompt_ids)
        """The prompt without the rows of pictures."""
        self.source_ids = tuple(source_ids)
        self.cache_salt: str | None = None
        """Only texts of the same salt reuse each other's prompts."""
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
        added = tokenizer.added_tokens if tokenizer is not None else {}
        self.stop_ids = {added[stop]: stop for stop in config.stop if stop in added}
        """Stop strings that are one token, which may have no text, as control tokens have none."""
        self.guard = LoopGuard() if config.loop_guard != "off" else None
        self.escapes = 0
        """How often the loop guard led the text out of a loop."""
        self.forced: deque[int] = deque()
        """Next tokens, if the constraint leaves no choice."""
        self.pending_ids: list[int] = []
        """Tokens of the text that were not fed yet."""
        self.drafter, self.verifier = drafter, verifier
        self.verified: deque[tuple[int, Logits]] = deque()
        """Drafted tokens that were fed, each with the logits after it; the text may still take others."""
        self.accepted_of_draft = 0
        """Tokens of the last draft that were accepted so far."""
        self.is_scored = config.logprobs is not None or (config.has_several_texts and config.num_beams == 1)
        """Whether the log-probability of every token is needed, also of the id that ends the text."""
        self.scored: list[float] = []
        """These log-probabilities, if `is_scored`."""
        self.logprobs: list[float] = []
        self.alternatives: list[tuple[Alternative, ...]] = []
        self.end: Chunk | None = None
        """If log-probabilities are requested: the chunk of the id that ended the text, which is not part of the text."""
        self.reused_tokens, self.prefill_seconds = 0, 0.0
        self.started = self.first_token = self.ended = time.perf_counter()

    def shares_cache_with(self, other: Continuation) -> bool:
        """Return whether one text may reuse what was computed for the other's prompt."""
        return (self.config.adapter, self.cache_salt) == (other.config.adapter, other.cache_salt)

    def choose(self, logits: Logits) -> int:
        """Choose the next token id from logits [vocabulary]."""
        if self.forced:
            return self.forced.popleft()
        repeated = self.guard.next_in_cycle if self.guard else None
        if repeated is None:
            return self.chooser.choose(logits, self.token_ids)
        self.escapes += 1
        if self.config.loop_guard == "penalise":
            return self.chooser.choose(logits, self.token_ids, banned=[repeated])
        attempts = (self.chooser.choose(logits, self.token_ids, attempt=attempt) for attempt in range(1, MOST_ATTEMPTS + 1))
        return next((token_id for token_id in attempts if token_id != repeated), repeated)

    def accept(self, token_id: int, logits: Logits | None = None) -> Chunk:
        """Append a token; returns a chunk with the text that it made certain and, if it was the last, the finish reason.

        `logits` [vocabulary]: those that it was chosen from; without them there are no log-probabilities.
        """
        self.ended = time.perf_counter()
        if not self.token_ids:
            self.first_token = self.ended
        if self.is_scored and logits is not None:
            self.scored.append(float(target_logprobs(logits[None], np.array([token_id]))[0]))
        if token_id in self.limits.eos_ids or token_id in self.stop_ids:
            if self.config.logprobs is not None and logits is not None:
                self.end = self.with_logprobs(Chunk("", (token_id,)), logits, self.config.logprobs)
            end = self.finish("eos" if token_id in self.limits.eos_ids else "stop")
            self.stops.matched = self.stops.matched or self.stop_ids.get(token_id)
            return end
        self.token_ids.append(token_id)
        self.pending_ids.append(token_id)
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
        """Return whether the caller's stopping criterion ends the text, whose piece `text` has just become certain."""
        criterion = self.config.stopping_criterion
        ends = criterion is not None and criterion([*self.written_ids, *self.token_ids], self.text + text)
        return "stop" if ends else None

    def reason_to_end(self, token_id: int) -> FinishReason | None:
        """Why the text ends after this token; None if it does not."""
        if self.constraint is not None:
            self.constraint.accept(token_id)
            if self.constraint.is_done:
                return "eos"  # the constraint allows no further token
            if not self.forced:
                self.forced.extend(self.constraint.forced())
        if len(self.token_ids) >= self.config.max_new_tokens:
            return "length"
        if self.config.context_limit != "shift" and len(self.prompt_ids) + len(self.token_ids) >= self.limits.context_length:
            return "context"
        if self.guard is not None:
            self.guard.push(token_id)
            most_escapes = 0 if self.config.loop_guard == "stop" else MOST_ESCAPES
            if self.guard.next_in_cycle is not None and self.escapes >= most_escapes:
                return "loop"
        return None

    @property
    def is_forced(self) -> bool:
        """Whether the constraint determines the next token, so that its logits are not needed."""
        return bool(self.forced) and not self.is_scored

    @property
    def most_tokens(self) -> int:
        """The most tokens of prompt and text in the cache at a time."""
        return self.limits.longest(len(self.prompt_ids), self.config.max_new_tokens)

    def take_pending(self) -> list[int]:
        """Return the tokens that were not fed yet; from now on they count as fed."""
        pending, self.pending_ids = self.pending_ids, []
        return pending

    def finish(self, reason: FinishReason, chunk: Chunk | None = None) -> Chunk:
        """End the text; returns the last chunk, with the text that was held back up to a stop string."""
        chunk = chunk or Chunk("", ())
        text = chunk.text + self.stops.push(self.stream.flush() if self.stream else "")[0] + self.stops.flush()
        if self.stops.matched is not None:  # perhaps found only now that no more text can follow
            reason = "stop"
        self.text += text
        self.finish_reason = reason
        return dataclasses.replace(chunk, text=text, finish_reason=reason, stats=self.stats(), follows_rule=self.follows_rule)

    def with_logprobs(self, chunk: Chunk, logits: Logits, count: int) -> Chunk:
        """The chunk with the model's own log-probability of its token, and the `count` most likely alternatives."""
        piece = self.tokenizer.piece if self.tokenizer is not None else "<{}>".format
        alternatives = most_likely_tokens(logits, count, piece) if count else ()
        return dataclasses.replace(chunk, logprobs=(self.scored[-1],), alternatives=(alternatives,))

    @property
    def score(self) -> float:
        """The mean log-probability per token, which ranks the scored texts of a prompt."""
        return mean_logprob(self.scored)

    def close(self) -> None:
        """Release what is needed only during generation."""
        if self.drafter is not None:
            self.drafter.close()

    @property
    def follows_rule(self) -> bool | None:
        """Whether the text so far satisfies its constraint completely; None without one."""
        return None if self.constraint is None else self.constraint.is_satisfied

    def fresh(self) -> Continuation:
        """A continuation of the same prompt with the same start time, and no token yet."""
        constraint = self.constraint.fork() if self.constraint is not None else None
        other = Continuation(
            self.tokenizer, self.prompt_ids, self.config, self.limits, constraint=constraint, source_ids=self.source_ids
        )
        other.reused_tokens, other.prefill_seconds, other.started = self.reused_tokens, self.prefill_seconds, self.started
        return other

    def stops_at(self, token_ids: Sequence[int]) -> bool:
        """Return whether a stop string or the caller's stopping criterion ends a text of these new ids."""
        criterion = self.config.stopping_criterion
        if criterion is None and (self.tokenizer is None or not self.config.stop):
            return False
        text = ""
        if token_ids and token_ids[-1] in self.stop_ids:
            return True
        if self.tokenizer is not None:
            stream = StreamDecoder(self.tokenizer, after=self.written_ids)
            text = "".join(stream.push(token_id) for token_id in token_ids) + stream.flush()
        return any(stop in text for stop in self.config.stop) or bool(
            criterion and criterion([*self.written_ids, *token_ids], text)
        )

    @property
    def prompt_tokens(self) -> int:
        """Tokens of what the model reads before the text: of the prompt, or of an encoder-decoder's source."""
        return len(self.source_ids or self.prompt_ids)

    def stats(self) -> Stats:
        """The statistics so far."""
        prompt, new = self.prompt_tokens, len(self.token_ids)
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
        """The finished text; with its score if the prompt has several texts."""
        assert self.finish_reason is not None, "the text has not ended"
        return Generation(
            text=self.text,
            token_ids=tuple(self.token_ids),
            finish_reason=self.finish_reason,
            stats=self.stats(),
            prompt_ids=self.prompt_ids,
            source_ids=self.source_ids,
            config=self.config,
            logprobs=tuple(self.logprobs),
            alternatives=tuple(self.alternatives),
            follows_rule=self.follows_rule,
            score=self.score if self.config.has_several_texts else None,
        )
