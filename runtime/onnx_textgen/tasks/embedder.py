"""Embeds texts with one model: as vectors of the package's kind, or of another kind if the caller says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast, get_args

import numpy as np

from ..backends.signature import HIDDEN_STATES, LAST_HIDDEN_STATE
from ..cancellation import UNCANCELLED, CancelScope
from ..encoders.text_encoder import SENTENCE_EMBEDDING, TextEncoder
from ..errors import OptionError, PackageError
from ..options.checks import shown, whole_number
from ..package.retrieval import EmbeddingSettings, Pooling, with_prompt
from ..text.prompts import Prompt
from .embeddings import Vectors, groups, pooled, pooled_states, pooled_together
from .open_model import OpenModel
from .prompt_encoder import PromptEncoder

ROWS = 8
"""Most texts of one run."""
MOST_TOGETHER = 256
"""Most tokens of a run of more than one text. Longer texts are no faster together, and a text encoder's numbers leave a core's
cache: with eight times as many tokens it took 1.4 times as long at widths of 384 and 768."""


def fits_together(lengths: Sequence[int]) -> bool:
    """Return whether a text encoder reads texts of these lengths in one run."""
    return len(lengths) * max(lengths) <= MOST_TOGETHER


class Embedder:
    """Embeds texts with one open model; each call has its own decoder, which is released afterwards."""

    def __init__(self, opened: OpenModel, encoder: PromptEncoder) -> None:
        self.opened, self.encoder = opened, encoder
        self.settings = opened.manifest.embedding or EmbeddingSettings()

    def encode(self, texts: Sequence[Prompt], *, prompt: str | None = None, prompt_name: str | None = None) -> list[list[int]]:
        """Token ids of texts to embed, with the prompt before each text; ids that are given get none.

        Raises `PromptError`, and `OptionError` for a prompt that cannot take effect.
        """
        self.opened.refuse_encoder_decoder("makes no vectors")
        return [self.encoder.encode(each, new_tokens=0) for each in with_prompt(self.settings, texts, prompt, prompt_name)]

    def vectors(
        self,
        encoded: Sequence[Sequence[int]],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        adapter: str | None = None,
        scope: CancelScope = UNCANCELLED,
    ) -> Vectors:
        """Vectors [texts, width] of token ids.

        Raises `OptionError`, `PackageError` if the package cannot give them, and `InterruptedRunError` if `scope` ends it.
        """
        if self.opened.manifest.pair_scoring is not None:
            raise PackageError(f"{self.opened.manifest.name} scores pairs of texts and makes no vectors: call rerank")
        settings, reader = self.settings_with(pooling), self.opened.text_encoder
        kept = settings.dimensions if dimensions is None else dimensions
        with scope.active():
            if reader is not None:
                self.opened.for_adapter(adapter)  # which none has
                vectors = self.read(reader, encoded, settings.pooling, scope)
            else:
                vectors = self.feed(encoded, cast("Pooling", settings.pooling), adapter, scope)
        if kept is not None:
            vectors = vectors[:, : whole_number("dimensions", kept, 1, vectors.shape[1])]
        if settings.normalize if normalize is None else normalize:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return vectors

    def feed(self, encoded: Sequence[Sequence[int]], pooling: Pooling, adapter: str | None, scope: CancelScope) -> Vectors:
        """Vectors [texts, width] by a decoder's hidden states."""
        graph = self.opened.graph
        if graph.name_of(HIDDEN_STATES) not in graph.outputs:
            raise PackageError(
                f"{self.opened.manifest.name} gives no hidden states to embed by; export it again with --hidden-states"
            )
        alone = self.opened.new_context(output=HIDDEN_STATES, adapter=adapter)
        together = self.opened.new_rows(min(ROWS, len(encoded)), adapter, output=HIDDEN_STATES)

        def fits(lengths: Sequence[int]) -> bool:
            is_invariant = together.capabilities.is_batch_invariant  # a vector does not depend on the texts next to its own
            return is_invariant and len(lengths) <= ROWS and together.can_prefill_together(lengths, MOST_TOGETHER)

        vectors: Vectors = np.empty((len(encoded), alone.capabilities.width), np.float32)
        for group in groups([len(ids) for ids in encoded], fits):
            texts = [encoded[place] for place in group]
            is_one = len(texts) == 1
            vectors[group] = (
                [pooled(alone, texts[0], pooling, scope)] if is_one else pooled_together(together, texts, pooling, scope)
            )
        return vectors

    def read(self, reader: TextEncoder, encoded: Sequence[Sequence[int]], pooling: str, scope: CancelScope) -> Vectors:
        """Vectors [texts, width] by a text encoder."""
        output = SENTENCE_EMBEDDING if pooling == "graph" else LAST_HIDDEN_STATE
        vectors: Vectors = np.empty((len(encoded), reader.width(output)), np.float32)
        for group in groups([len(ids) for ids in encoded], fits_together):
            texts = [encoded[place] for place in group]
            found = reader.read(texts, output, scope=scope)
            if output == LAST_HIDDEN_STATE:
                states = (each[: len(text)] for each, text in zip(found, texts, strict=True))
                vectors[group] = [pooled_states(each, cast("Pooling", pooling)) for each in states]
            else:
                vectors[group] = found
        return vectors

    def settings_with(self, pooling: Pooling | None) -> EmbeddingSettings:
        """The package's settings, with another pooling if one is given.

        Raises `OptionError` for a pooling that does not exist, and `PackageError` if the model's own vectors cannot be computed.
        """
        if pooling is None:
            if self.settings.refused:
                raise PackageError(
                    f"{self.opened.manifest.name} makes its vectors in a way that is not supported ({self.settings.refused}); "
                    "give a pooling to get other vectors"
                )
            return self.settings
        if not isinstance(pooling, str) or pooling not in get_args(Pooling):
            raise OptionError(f"pooling should be one of {', '.join(map(repr, get_args(Pooling)))}, found {shown(pooling)}")
        return dataclasses.replace(self.settings, pooling=pooling)
