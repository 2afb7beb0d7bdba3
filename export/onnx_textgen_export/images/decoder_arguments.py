"""What a model gives its text decoder for a picture: positions on three axes (M-RoPE), and a mask that is not causal.

Without them, the decoder counts places in the text, and each token sees those before it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from onnx_textgen.images.image_rows import ImageRows, ReadImage
from onnx_textgen.images.positions import AXES, position_offsets

from ..errors import ExportError
from ..huggingface.probed_model import attention_as
from ..image_processors.grids import Grid
from ..layers.encoder_attention import OWN
from .vision import without_text

AROUND = 3
"""Text tokens before a picture and after it."""


@dataclasses.dataclass(frozen=True, slots=True)
class DecoderArguments:
    """How a model gives a picture to its text decoder."""

    has_axes: bool
    """Positions are on three axes, which the runtime can count."""
    bidirectional: bool
    """The tokens of a picture see each other in both directions."""


def decoder_arguments(
    model: PreTrainedModel, token_id: int, given: dict[str, Tensor], tokens: int, grid: Grid | None
) -> DecoderArguments:
    """Find out by a text with one picture.

    given: what the processor makes of it for the model, without what belongs to tokens. Raises `ExportError` for positions or masks
    of a kind that is not known.
    """
    text = [token_id + 1 if token_id == 0 else token_id - 1] * AROUND
    ids = torch.tensor([[*text, *[token_id] * tokens, *text]])
    seen = list[dict[str, Any]]()
    of_tokens = {name: (ids == token_id).long() for name in ("mm_token_type_ids", "token_type_ids")}
    of_tokens["attention_mask"] = torch.ones_like(ids)
    taken = {name: value for name, value in of_tokens.items() if name in inspect.signature(model.forward).parameters}
    with torch.no_grad(), attention_as(model, OWN), without_text(model, seen.append):
        model(input_ids=ids, **given, **taken, use_cache=False)
    name = type(model).__name__
    return DecoderArguments(
        has_axes(name, seen[0].get("position_ids"), text, tokens, grid),
        is_bidirectional(name, seen[0].get("attention_mask"), ids[0] == token_id),
    )


def has_axes(name: str, positions: Tensor | None, text: list[int], tokens: int, grid: Grid | None) -> bool:
    """Return whether positions are on three axes; raises `ExportError` if the runtime cannot count them."""
    if positions is None or positions.ndim < len(("axis", "batch", "token")):
        return False
    image = ReadImage(b"", np.zeros((tokens, 1), np.float32), grid)
    known = ImageRows(1)
    known.keep(image)
    new = [*text, *image.ids, *text]
    if not np.array_equal(positions[-AXES:, 0].numpy(), np.arange(len(new)) + position_offsets([], new, known)):
        raise ExportError(f"{name} counts the positions of pictures in a way that is not known")
    return True


def is_bidirectional(name: str, given: object, of_picture: Tensor) -> bool:
    """Return whether some layer lets the tokens of a picture see later ones; raises `ExportError` if it shows more than these."""
    later = set[bool]()
    picture = of_picture[:, None] & of_picture[None]
    for mask in given.values() if isinstance(given, Mapping) else [given]:
        if not isinstance(mask, Tensor) or mask.ndim < len(("batch", "head", "query", "key")):
            continue
        seen = (mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] == 0).triu(1)
        if seen.any() and not torch.equal(seen, picture.triu(1)):
            raise ExportError(f"{name} reads text with a picture in both directions, which is not supported")
        later.add(bool(seen.any()))
    if len(later) > 1:
        raise ExportError(f"{name} reads pictures in both directions in some of its layers, which is not supported")
    return later == {True}
