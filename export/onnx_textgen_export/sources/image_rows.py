"""Rows of images instead of token embeddings.

In a decoder that reads images, an id below 0 names a row of its input `image_embeds`: -1 the first, -2 the second. So each row of a
batch, and each part of a prompt, says by itself which rows it takes. Positions on several axes (M-RoPE) come as `position_offsets`:
how far each is from the place of its token in the text.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .onnx_attention import BIDIRECTIONAL


@dataclasses.dataclass(frozen=True, slots=True)
class ImagePart:
    """What a decoder knows of images: where their rows go."""

    embedding: nn.Module
    """The token embedding, whose output [batch, new, width] has the rows."""
    width: int
    """Of the embedding's output."""
    token_id: int
    """The id that the model itself knows as that of an image's tokens."""
    vocab_size: int
    """Rows of the embedding's table; the token's id may lie beyond."""
    decoder: nn.Module | None = None
    """The text decoder, if it takes positions on several axes; then the graph takes their offsets [3, batch, new]."""
    tokens: int = 0
    """Rows of each picture, if all of them are written as one run of tokens; else 0."""
    bidirectional: bool = False
    """Whether the tokens of a picture see each other in both directions."""
    layers: tuple[nn.Module, ...] = ()
    """Layers of the decoder to whose output a row adds further numbers, which follow those of the embedding."""

    @property
    def row_width(self) -> int:
        """Numbers of a row."""
        return self.width * (1 + len(self.layers))

    def plain_ids(self, ids: Tensor) -> Tensor:
        """Ids that the embedding knows, for its output is replaced."""
        return torch.where(ids < 0, self.token_id if self.token_id < self.vocab_size else 0, ids)

    @contextlib.contextmanager
    def reading(self, ids: Tensor, rows: Tensor, offsets: Tensor | None = None) -> Iterator[None]:
        """Within the context, the embedding of an id below 0 is its row of `rows` [rows, row width], and positions have offsets."""
        padded = torch.cat([rows, torch.zeros(1, self.row_width)])  # a text without images has no rows, and a Gather needs one
        of_image = (ids < 0).unsqueeze(-1)
        chosen, *deeper = torch.split(nn.functional.embedding((-1 - ids).clamp(min=0), padded), self.width, dim=-1)

        def replace(_: nn.Module, __: object, output: Tensor) -> Tensor:
            return torch.where(of_image, chosen, output)

        def add(more: Tensor) -> Callable[[nn.Module, object, Any], Any]:
            def added(_: nn.Module, __: object, output: Any) -> Any:  # noqa: ANN401 - a tensor, or first of a tuple
                first = output if isinstance(output, Tensor) else output[0]
                made = first + torch.where(of_image, more, 0.0)
                return made if isinstance(output, Tensor) else (made, *output[1:])

            return added

        def move(_: object, args: tuple[object, ...], given: dict[str, Any]) -> tuple[tuple[object, ...], dict[str, Any]]:
            return args, given | {"position_ids": given["position_ids"] + offsets}  # [batch, new] becomes [3, batch, new]

        hooks = [self.embedding.register_forward_hook(replace)]
        hooks += [layer.register_forward_hook(add(more)) for layer, more in zip(self.layers, deeper, strict=True)]
        if offsets is not None and self.decoder is not None:
            hooks.append(self.decoder.register_forward_pre_hook(move, with_kwargs=True))
        token = BIDIRECTIONAL.set(ids < 0 if self.bidirectional else None)
        try:
            yield
        finally:
            BIDIRECTIONAL.reset(token)
            for hook in hooks:
                hook.remove()
