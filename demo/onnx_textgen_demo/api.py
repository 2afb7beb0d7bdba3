"""The page's one function for other programs: `generate`, with the runtime's own names, types and limits."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import gradio as gr

from onnx_textgen.errors import OnnxTextgenError

from .limits import MOST_SECONDS, checked
from .models import ModelRegistry

if TYPE_CHECKING:
    from onnx_textgen import Model

ANSWER_SECONDS = 0.1
"""Interval between two answers while the text grows."""


def make_generate(registry: ModelRegistry) -> Callable[..., Iterator[dict[str, Any]]]:
    """The function for the models of a registry. Gradio closes its generator when the client leaves, which ends the text."""

    def generate(  # noqa: PLR0917  (Gradio passes them in their order; clients by name)
        prompt: str,
        max_new_tokens: int = 64,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        stop: list[str] | None = None,
        model: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Continue a text. Yields the text so far, again and again; the last result has `finish_reason` and `stats`.

        Args:
            prompt: The text that the model continues, or the source that an encoder-decoder reads.
            max_new_tokens: The largest number of new tokens.
            temperature: 0 always takes the most likely token. Default here and below: the model's own.
            top_k: Draw from the k most likely tokens.
            top_p: Draw from the fewest tokens that hold this share of the probability.
            min_p: Draw from tokens at least this many times as likely as the most likely one.
            seed: The same seed gives the same text.
            stop: Texts that end the generation and are left out.
            model: The name of one of the page's models. Default: the first one.

        """
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed, "stop": stop}
        try:
            yield from growing_answer(registry.model(model), checked(prompt), options | {"max_new_tokens": max_new_tokens})
        except OnnxTextgenError as error:
            raise gr.Error(str(error), print_exception=False) from error

    return generate


def growing_answer(model: Model, prompt: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the answer while its text grows; the last one is complete."""
    answer: dict[str, Any] = {"text": "", "token_ids": [], "finish_reason": None, "stats": None}
    shown = time.perf_counter()
    with contextlib.closing(model.stream(prompt, max_time=MOST_SECONDS, **options)) as chunks:
        for chunk in chunks:
            answer["text"] += chunk.text
            answer["token_ids"] += chunk.token_ids
            answer["finish_reason"] = chunk.finish_reason
            if chunk.stats:
                answer["stats"] = dataclasses.asdict(chunk.stats)
            elif time.perf_counter() - shown >= ANSWER_SECONDS:
                yield answer
                shown = time.perf_counter()
    yield answer
