"""Vectors of texts for a response, a part of them in each turn, so that other clients are served in between."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from onnx_textgen import Cancellation, Model
from onnx_textgen.errors import PromptError
from onnx_textgen.package.retrieval import EmbeddingSettings, with_prompt
from onnx_textgen.tasks.embeddings import Vectors

if TYPE_CHECKING:
    from .work_queue import Compute

PART = 16
"""Texts that are embedded in one turn."""


class VectorOptions(Protocol):
    """Options for vectors, as requests of every wire format have them."""

    dimensions: int | None
    adapter: str | None


def encode_texts(
    model: Model, texts: Sequence[str | list[int]], prompt: str | None = None, prompt_name: str | None = None, *, cuts: bool = True
) -> list[list[int]]:
    """The token ids that `Model.embed` computes for texts; raises `PromptError` and `OptionError`.

    `cuts`: whether a text that is too long for a text encoder is cut, not refused.
    """
    settings = model.manifest.embedding or EmbeddingSettings()
    given = with_prompt(settings, texts, prompt, prompt_name)
    if not cuts and (about := model.manifest.text_encoder) is not None:
        for each in given:
            if isinstance(each, str) and len(model.tokenizer.encode_within(about.most_tokens + 1, each)[0]) > about.most_tokens:
                raise PromptError(
                    f"a text has more than the {about.most_tokens:,} tokens that this model reads; shorten it, or let it be cut"
                )
    return [model.encode(each, new_tokens=0) for each in given]


async def written_vectors(
    compute: Compute, model: Model, encoded: Sequence[Sequence[int]], options: VectorOptions, write: Callable[[int, Vectors], str]
) -> list[str]:
    """The vectors of encoded texts, each as `write` makes JSON of its place and itself.

    One by one, as a call of `json.dumps` holds up everything else.
    """

    def part(first: int, cancel: Cancellation) -> list[str]:
        texts = [list(ids) for ids in encoded[first : first + PART]]
        found = model.embed(texts, dimensions=options.dimensions, adapter=options.adapter, cancel=cancel)
        return [write(first + place, vector) for place, vector in enumerate(found)]

    written = list[str]()
    for first in range(0, len(encoded), PART):
        written += await compute(functools.partial(part, first))
    return written
