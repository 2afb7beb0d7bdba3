"""The page's one function for other programs: `generate`, with the runtime's own names, types and limits."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from onnx_textgen.errors import OnnxTextgenError

from .limits import MOST_SECONDS, checked
from .shelf import Shelf

ANSWER_SECONDS = 0.1
"""Between two answers while the text grows."""


def make_generate(shelf: Shelf) -> Callable[..., Iterator[dict[str, Any]]]:
    """The function for the models of a shelf. Closing its generator, which Gradio does for a client that goes, ends the text."""

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
        """Continue a text: the text so far, again and again; with the last one come `finish_reason` and `stats`.

        Args:
            prompt: What the model goes on from.
            max_new_tokens: The text ends here at the latest.
            temperature: 0 always takes the likeliest token; left out, like the others, it is the model's own default.
            top_k: Draw among the k likeliest tokens.
            top_p: Draw among the fewest tokens that hold this share of the probability.
            min_p: Draw among tokens at least this many times as likely as the likeliest.
            seed: The same seed writes the same text.
            stop: Texts that end the generation and are left out.
            model: One of the page's models, by name; the first one if left out.

        """
        answer: dict[str, Any] = {"text": "", "token_ids": [], "finish_reason": None, "stats": None}
        shown = time.perf_counter()
        try:
            chunks = shelf.model(model).stream(
                checked(prompt),
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                seed=seed,
                stop=stop,
                max_time=MOST_SECONDS,
            )
            with contextlib.closing(chunks):
                for chunk in chunks:
                    answer["text"] += chunk.text
                    answer["token_ids"] += chunk.token_ids
                    answer["finish_reason"] = chunk.finish_reason
                    if chunk.stats:
                        answer["stats"] = dataclasses.asdict(chunk.stats)
                    elif time.perf_counter() - shown >= ANSWER_SECONDS:
                        yield answer
                        shown = time.perf_counter()
        except OnnxTextgenError as error:
            raise gr.Error(str(error), print_exception=False) from error
        yield answer

    return generate
