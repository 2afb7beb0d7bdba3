"""Rows of images instead of token embeddings.

In a decoder that reads images, an id below 0 names a row of its input `image_embeds`: -1 the first, -2 the second. So each row of a
batch, and each part of a prompt, says by itself which rows it takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True, slots=True)
class ImagePart:
    """What a decoder knows of images: where their rows go."""

    embedding: nn.Module
    """The token embedding, whose output [batch, new, width] has the rows."""
    width: int
    token_id: int
    """The id that the model itself knows as that of an image's tokens."""
    vocab_size: int
    """Rows of the embedding's table; the token's id may lie beyond."""

    def plain_ids(self, ids: Tensor) -> Tensor:
        """Ids that the embedding knows, for its output is replaced."""
        return torch.where(ids < 0, self.token_id if self.token_id < self.vocab_size else 0, ids)

    @contextlib.contextmanager
    def reading(self, ids: Tensor, rows: Tensor) -> Iterator[None]:
        """Within the context, the embedding of an id below 0 is its row of `rows` [rows, width]."""
        padded = torch.cat([rows, torch.zeros(1, self.width)])  # a text without images has no rows, and a Gather needs one
        chosen = nn.functional.embedding((-1 - ids).clamp(min=0), padded)

        def replace(_: nn.Module, __: object, output: Tensor) -> Tensor:
            return torch.where((ids < 0).unsqueeze(-1), chosen, output)

        hook = self.embedding.register_forward_hook(replace)
        try:
            yield
        finally:
            hook.remove()
