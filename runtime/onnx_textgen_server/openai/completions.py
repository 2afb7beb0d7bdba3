"""`POST /v1/completions`: texts that continue prompts, and the log-probabilities of prompts.

The prompt of an encoder-decoder is the source that it reads.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from onnx_textgen import Chunk, Model, Score
from onnx_textgen.errors import OptionError
from onnx_textgen.generation.beam_driver import best_drawn
from onnx_textgen.generation.continuation import Continuation
from onnx_textgen.images.image_rows import without_images

from ..requests.infill import ends_of_infill
from ..serving.jobs import Job
from ..serving.problems import Problem
from .answers import Envelope, TextOffsets, TokenFormatter, ending, fingerprint, usage
from .schema import CompletionRequest
from .wire import OPENAI, problem_as_json


class Completion:
    """The answer to one request."""

    wire, operation = OPENAI, "text_completion"

    def __init__(self, name: str, model: Model, body: CompletionRequest, max_seconds: float | None) -> None:
        """Raises `PromptError` and `OptionError`."""
        self.name, self.model, self.body = name, model, body
        self.texts, self.draws = body.n or 1, body.draws
        check(body, self.texts, self.draws)
        if body.echo and model.manifest.encoder is not None:
            raise OptionError(f"echo is for models that continue a prompt, and {name} is an encoder-decoder; leave it out")
        options = body.options_of_call(model.manifest.geometry.context_length)
        if body.best_of is not None:  # the texts are then compared by their log-probabilities
            options.setdefault("logprobs", 0)
        if body.suffix:
            options |= ends_of_infill(model)
        self.job = Job.begin(
            model,
            [self.encode(prompt) for prompt in body.prompts],
            model.generator.config(options),
            self.draws,
            max_seconds,
            cache_salt=body.cache_salt,
        )
        self.envelope, self.tokens = Envelope("text_completion", name, fingerprint(model)), TokenFormatter(model)
        self.beginnings = [self.text_of(prompt) if body.echo else "" for prompt in body.prompts]

    def encode(self, prompt: str | list[int]) -> str | list[int]:
        """A prompt, with the suffix if there is one."""
        if not self.body.suffix or not isinstance(prompt, str):
            return prompt
        return self.model.encode_infill(prompt, self.body.suffix, suffix_first=self.body.suffix_first)

    def text_of(self, prompt: str | list[int]) -> str:
        """A prompt as text; pictures have none."""
        return prompt if isinstance(prompt, str) else self.model.tokenizer.decode(without_images(prompt))

    async def whole(self) -> dict[str, Any]:
        """See `Answer`."""
        body, job, scores = self.body, self.job, list[Score | None]()
        if body.max_tokens != 0:
            await job.finish()
        groups = [job.continuations[i : i + self.draws] for i in range(0, len(job.continuations), self.draws)]
        for group in groups:
            scores.append(await self.score(group[0]) if body.echo and body.logprobs is not None else None)
        choices = list[dict[str, Any]]()
        for group, beginning, score in zip(groups, self.beginnings, scores, strict=True):
            for each in best_drawn(group, self.texts, compares=body.best_of is not None):
                choice = {"text": beginning + each.text, "logprobs": self.logprobs(each, score)}
                choices.append(
                    {"index": len(choices), **choice, **ending(each.finish_reason or "length", follows_rule=each.follows_rule)}
                )
        return self.envelope.wrap(choices, usage=usage(job))

    async def score(self, continuation: Continuation) -> Score | None:
        """Log-probabilities of a prompt; None for a prompt of one token, which has none."""
        ids, count = continuation.prompt_ids, self.body.logprobs or 0
        if len(ids) < 2:
            return None
        return await self.job.run(lambda: self.model.score(ids, logprobs=count, cancel=self.job.cancel, adapter=self.body.adapter))

    def logprobs(self, continuation: Continuation, score: Score | None) -> dict[str, Any] | None:
        """The `logprobs` field of a whole text, with the prompt before it if it is echoed."""
        if self.body.logprobs is None:
            return None
        ids, values, others = tuple(continuation.token_ids), list[float | None](continuation.logprobs), continuation.alternatives
        if self.body.echo:
            before = (None, *score.logprobs) if score is not None else (None,)
            rivals = ((), *score.alternatives) if score is not None and score.alternatives else ((),) * len(before)
            ids, values, others = (*continuation.prompt_ids, *ids), [*before, *values], [*rivals, *others]
            if continuation.end is not None:  # evaluation harnesses expect the requested number of tokens
                end = continuation.end
                ids, values, others = (*ids, *end.token_ids), [*values, *end.logprobs], [*others, *end.alternatives]
        offsets = TextOffsets(self.model, () if self.body.echo else continuation.prompt_ids)
        return self.tokens.of_completion(ids, values, others, offsets)

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """See `Answer`."""
        offsets = [TextOffsets(self.model, each.prompt_ids) for each in self.job.continuations]

        def event(index: int, text: str, logprobs: dict[str, Any] | None = None, chunk: Chunk | None = None) -> dict[str, Any]:
            reason = ending(None) if chunk is None else ending(chunk.finish_reason, follows_rule=chunk.follows_rule)
            choice = {"index": index, "text": text, "logprobs": logprobs, **reason}
            return self.envelope.wrap([choice], is_chunk=True)

        def logprobs_of(index: int, chunk: Chunk) -> dict[str, Any] | None:
            if self.body.logprobs is None or not chunk.token_ids:
                return None
            return self.tokens.of_completion(chunk.token_ids, chunk.logprobs, chunk.alternatives, offsets[index])

        for index in range(len(offsets)) if self.body.echo else ():
            yield event(index, self.beginnings[index // self.draws])
        async with contextlib.aclosing(self.job.chunks()) as chunks:
            async for index, chunk in chunks:
                logprobs = logprobs_of(index, chunk)
                if chunk.text or logprobs or chunk.finish_reason:
                    yield event(index, chunk.text, logprobs, chunk)
        if self.body.includes_usage:
            yield self.envelope.wrap([], is_chunk=True, usage=usage(self.job))

    def failed(self, problem: Problem) -> dict[str, Any]:
        """See `Answer`."""
        return problem_as_json(problem)


def check(body: CompletionRequest, texts: int, draws: int) -> None:
    """Raise `OptionError` for parameters that exclude each other."""
    if draws < texts:
        raise OptionError(f"best_of {draws} is less than n {texts}; raise it")
    if body.suffix and not all(isinstance(prompt, str) for prompt in body.prompts):
        raise OptionError("suffix needs a prompt that is text, not token ids; give text, or write the suffix into the ids")
    if body.suffix and body.echo:
        raise OptionError("echo with suffix would repeat a part of the text only; leave out one of them")
    if body.suffix_first is not None and not body.suffix:
        raise OptionError("suffix_first has no effect without a suffix; leave it out")
    if body.stream and draws > texts:
        raise OptionError("best_of compares whole texts, which cannot be streamed; leave out best_of or stream")
    if body.max_tokens == 0 and (not body.echo or body.stream):
        raise OptionError("max_tokens 0 generates no text; with echo and logprobs it scores the prompt, not streamed")
    if body.stream and body.echo and body.logprobs is not None:
        raise OptionError("echo with logprobs is not streamed; leave out echo, logprobs or stream")
