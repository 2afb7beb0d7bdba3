"""Embeds texts with one model: as vectors of the package's kind, or of another kind if the caller says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import get_args

import numpy as np

from ..backends.signature import HIDDEN_STATES
from ..cancellation import UNCANCELLED, CancelScope
from ..errors import OptionError, PackageError
from ..options.checks import shown, whole_number
from ..package.retrieval import EmbeddingSettings, Pooling, with_prompt
from ..text.prompts import Prompt
from .embeddings import Vectors, groups, pooled, pooled_together
from .open_model import OpenModel
from .prompt_encoder import PromptEncoder

ROWS = 8
"""Most texts of one run."""
MOST_TOGETHER = 256
"""Most tokens of a run of more than one text; longer texts are no faster together, and take more memory."""


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
        settings, graph = self.settings_with(pooling), self.opened.graph
        if graph.name_of(HIDDEN_STATES) not in graph.outputs:
            raise PackageError(
                f"{self.opened.manifest.name} gives no hidden states to embed by; export it again with --hidden-states"
            )
        alone = self.opened.new_context(output=HIDDEN_STATES, adapter=adapter)
        together = self.opened.new_rows(min(ROWS, len(encoded)), adapter, output=HIDDEN_STATES)
        width = alone.capabilities.width
        dimensions = settings.dimensions if dimensions is None else dimensions
        kept = width if dimensions is None else whole_number("dimensions", dimensions, 1, width)

        def fits(lengths: Sequence[int]) -> bool:
            is_invariant = together.capabilities.is_batch_invariant  # a vector does not depend on the texts next to its own
            return is_invariant and len(lengths) <= ROWS and together.can_prefill_together(lengths, MOST_TOGETHER)

        vectors: Vectors = np.empty((len(encoded), kept), np.float32)
        with scope.active():
            for group in groups([len(ids) for ids in encoded], fits):
                texts = [encoded[place] for place in group]
                found = (
                    pooled_together(together, texts, settings.pooling, scope)
                    if len(texts) > 1
                    else [pooled(alone, texts[0], settings.pooling, scope)]
                )
                vectors[group] = np.stack(found)[:, :kept]
        if settings.normalize if normalize is None else normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
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
