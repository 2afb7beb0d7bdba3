"""The function behind the Generate button: turns the chunks a model streams into frames of the page.

Limits are the runtime's: what it refuses is shown as its own one-line message. Only the length of the prompt is checked here,
before it costs anything, because the browser's own limit does not bind those who call the server directly.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr

from onnx_textgen.errors import OnnxTextgenError, OptionError, PromptError

from . import view
from .transcript import Transcript

if TYPE_CHECKING:
    from onnx_textgen import Model

MAX_PROMPT_CHARS = 50_000
RIVALS = 10
"""Bars of the next-token distribution."""
FRAME_SECONDS = 0.08
SECONDS_PER_TOKEN = 0.0005
"""A small model writes faster than a browser redraws, and a redraw costs more the longer the text: frames wait as long as this."""

Frame = tuple[Any, ...]
"""Values for the components, in this order: transcript, text, status, tokens, bars, table."""


def make_generate(model: Model) -> Callable[..., Iterator[Frame]]:
    """The handler for `model`. Closing its generator, which Gradio does on Stop and when the client goes away, ends the model's.

    Raises `PackageError` for a package that has no tokenizer.
    """
    piece = model.tokenizer.piece

    def generate(  # noqa: PLR0917  (Gradio passes the values of the components in their order)
        prompt: str, max_new_tokens: int, temperature: float, top_k: int, top_p: float, min_p: float, seed: str
    ) -> Iterator[Frame]:
        transcript = Transcript(piece, secrets.randbits(31))
        try:
            transcript.seed = read_seed(seed, transcript.seed)
            stream = model.stream(
                checked(prompt),
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                seed=transcript.seed,
                logprobs=RIVALS,
            )
            yield frame(transcript)
            with contextlib.closing(stream) as chunks:
                shown = 0.0
                for chunk in chunks:
                    transcript.add(chunk)
                    if time.perf_counter() - shown >= FRAME_SECONDS + SECONDS_PER_TOKEN * len(transcript.tokens):
                        yield frame(transcript)
                        shown = time.perf_counter()
        except OnnxTextgenError as error:
            yield frame(transcript, problem=str(error), final=True)
            raise gr.Error(escape(str(error)), print_exception=False) from error
        yield frame(transcript, final=True)

    return generate


def checked(prompt: str | None) -> str:
    """The prompt if its length is acceptable; raises `PromptError` if not."""
    if prompt and len(prompt) > MAX_PROMPT_CHARS:
        raise PromptError(f"the prompt has {len(prompt):,} characters and this page takes {MAX_PROMPT_CHARS:,}; shorten it")
    return prompt or ""


def read_seed(text: str | None, fresh: int) -> int:
    """The seed a person typed, `fresh` for an empty field; the runtime knows the limits."""
    if not text or not text.strip():
        return fresh
    try:
        return int(text)
    except ValueError as error:
        raise OptionError(f"seed should be a whole number, found {text[:40]!r}; leave it empty for a new one each time") from error


def frame(transcript: Transcript, *, problem: str | None = None, final: bool = False) -> Frame:
    """The page as it stands; the table waits for the end, since redrawing hundreds of rows many times a second stutters."""
    return (
        transcript,
        transcript.text,
        view.status(transcript, problem=problem),
        view.spans(transcript.tokens),
        view.bars(transcript.tokens, len(transcript.tokens)),
        view.rows(transcript.tokens) if final else gr.skip(),
    )


def settle(transcript: Transcript | None) -> tuple[str, list[list[str | int]]]:
    """Status and table after Stop, which leaves a generation no chance to draw its own last frame."""
    return view.status(transcript, stopped=True), view.rows(transcript.tokens if transcript else [])


def look_back(transcript: Transcript | None, event: gr.SelectData) -> str:
    """The bars of the token a person pressed."""
    return view.bars(transcript.tokens if transcript else [], event.index + 1)
