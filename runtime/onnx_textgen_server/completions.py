"""`POST /v1/completions`: texts that go on from prompts, and the log-probabilities of prompts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from onnx_textgen import Chunk, Model, Score
from onnx_textgen.errors import OptionError
from onnx_textgen.generation.beam_driver import best_drawn
from onnx_textgen.generation.continuation import Continuation

from .answers import Envelope, Place, Tokens, ending, fingerprint, usage
from .jobs import Job
from .schema import CompletionRequest


class Completion:
    """One request's answer."""

    def __init__(self, name: str, model: Model, wish: CompletionRequest, most_seconds: float | None) -> None:
        """Raises `PromptError` and `OptionError`."""
        self.model, self.wish = model, wish
        self.texts, self.drawn = wish.n or 1, wish.drawn
        check(wish, self.texts, self.drawn)
        options = wish.options_of_call()
        if wish.best_of is not None:  # then texts are compared
            options.setdefault("logprobs", 0)
        self.job = Job.begin(model, wish.prompts, model.config(options), self.drawn, most_seconds)
        self.envelope, self.tokens = Envelope("text_completion", name, fingerprint(model)), Tokens(model)
        self.beginnings = [self.text_of(prompt) if wish.echo else "" for prompt in wish.prompts]

    def text_of(self, prompt: str | list[int]) -> str:
        """A prompt as text."""
        return prompt if isinstance(prompt, str) else self.model.tokenizer.decode(prompt)

    async def whole(self) -> dict[str, Any]:
        """See `Answer`."""
        wish, job, scores = self.wish, self.job, list[Score | None]()
        if wish.max_tokens != 0:
            await job.finish()
        groups = [job.continuations[i : i + self.drawn] for i in range(0, len(job.continuations), self.drawn)]
        for group in groups:
            scores.append(await self.score(group[0]) if wish.echo and wish.logprobs is not None else None)
        choices = list[dict[str, Any]]()
        for group, beginning, score in zip(groups, self.beginnings, scores, strict=True):
            for each in best_drawn(group, self.texts, compares=wish.best_of is not None):
                choice = {"text": beginning + each.text, "logprobs": self.logprobs(each, score)}
                choices.append({"index": len(choices), **choice, "finish_reason": ending(each.finish_reason) or "length"})
        return self.envelope.wrap(choices, usage=usage(job))

    async def score(self, continuation: Continuation) -> Score | None:
        """Log-probabilities of a prompt; None where it has a single token, of which nothing is known."""
        ids, count = continuation.prompt_ids, self.wish.logprobs or 0
        if len(ids) < 2:
            return None
        return await self.job.run(lambda: self.model.score(ids, logprobs=count, cancel=self.job.cancel))

    def logprobs(self, continuation: Continuation, score: Score | None) -> dict[str, Any] | None:
        """Of a whole text, the prompt before it where it was echoed."""
        if self.wish.logprobs is None:
            return None
        ids, values, others = tuple(continuation.token_ids), list[float | None](continuation.logprobs), continuation.alternatives
        if self.wish.echo:
            before = (None, *score.logprobs) if score is not None else (None,)
            rivals = ((), *score.alternatives) if score is not None and score.alternatives else ((),) * len(before)
            ids, values, others = (*continuation.prompt_ids, *ids), [*before, *values], [*rivals, *others]
            if continuation.end is not None:  # what evaluates prompts expects as many as were asked for
                end = continuation.end
                ids, values, others = (*ids, *end.token_ids), [*values, *end.logprobs], [*others, *end.alternatives]
        place = Place(self.model, () if self.wish.echo else continuation.prompt_ids)
        return self.tokens.of_completion(ids, values, others, place)

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """See `Answer`."""
        places = [Place(self.model, each.prompt_ids) for each in self.job.continuations]

        def event(place: int, text: str, logprobs: dict[str, Any] | None = None, reason: str | None = None) -> dict[str, Any]:
            choice = {"index": place, "text": text, "logprobs": logprobs, "finish_reason": reason}
            return self.envelope.wrap([choice], is_chunk=True)

        def told(place: int, chunk: Chunk) -> dict[str, Any] | None:
            if self.wish.logprobs is None or not chunk.token_ids:
                return None
            return self.tokens.of_completion(chunk.token_ids, chunk.logprobs, chunk.alternatives, places[place])

        for place in range(len(places)) if self.wish.echo else ():
            yield event(place, self.beginnings[place // self.drawn])
        async with contextlib.aclosing(self.job.chunks()) as chunks:
            async for place, chunk in chunks:
                logprobs = told(place, chunk)
                if chunk.text or logprobs or chunk.finish_reason:
                    yield event(place, chunk.text, logprobs, ending(chunk.finish_reason))
        if self.wish.includes_usage:
            yield self.envelope.wrap([], is_chunk=True, usage=usage(self.job))


def check(wish: CompletionRequest, texts: int, drawn: int) -> None:
    """Raise `OptionError` for what does not go together."""
    if drawn < texts:
        raise OptionError(f"best_of {drawn} is less than n {texts}; raise it")
    if wish.stream and drawn > texts:
        raise OptionError("best_of chooses among whole texts, which cannot be streamed; leave one of them out")
    if wish.max_tokens == 0 and (not wish.echo or wish.stream):
        raise OptionError("max_tokens 0 asks for no text; with echo and logprobs it scores the prompt, not streamed")
    if wish.stream and wish.echo and wish.logprobs is not None:
        raise OptionError("echo with logprobs is not streamed; leave one of the three out")
