"""Which positions a model gives the tokens of a picture: their places in the text, or places on three axes (M-RoPE)."""

from __future__ import annotations

import inspect
import math
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from onnx_textgen.images.image_rows import ImageRows, ReadImage
from onnx_textgen.images.positions import AXES, position_offsets

from ..errors import ExportError
from .grids import Grid
from .vision import without_text

AROUND = 3
"""Text tokens before a picture and after it."""


def decoder_with_axes(model: PreTrainedModel, token_id: int, given: dict[str, Tensor], grid: Grid) -> nn.Module | None:
    """The text decoder if it takes positions on three axes, which the runtime can count; None if it takes places.

    given: what the processor makes of one picture for the model, without what belongs to tokens. Raises `ExportError` for positions
    that the runtime does not know.
    """
    tokens = math.prod(grid)
    text = [token_id + 1 if token_id == 0 else token_id - 1] * AROUND
    ids = torch.tensor([[*text, *[token_id] * tokens, *text]])
    positions = given_positions(model, ids, given, token_id)
    if positions is None or positions.ndim < len(("axis", "batch", "token")):
        return None
    found = positions[-AXES:, 0].numpy()
    image = ReadImage(b"", np.zeros((tokens, 1), np.float32), grid)
    known = ImageRows(1)
    known.keep(image)
    new = [*text, *image.ids, *text]
    if not np.array_equal(found, np.arange(len(new)) + position_offsets([], new, known)):
        raise ExportError(f"{type(model).__name__} counts the positions of pictures in a way that is not known")
    return cast(nn.Module, cast(Any, model).get_decoder())


def given_positions(model: PreTrainedModel, ids: Tensor, given: dict[str, Tensor], token_id: int) -> Tensor | None:
    """The positions that a model gives its text decoder; None if it leaves them to it."""
    seen = list[dict[str, Any]]()
    of_tokens = {"attention_mask": torch.ones_like(ids), "mm_token_type_ids": (ids == token_id).long()}
    taken = {name: value for name, value in of_tokens.items() if name in inspect.signature(model.forward).parameters}
    with torch.no_grad(), without_text(model, seen.append):
        model(input_ids=ids, **given, **taken, use_cache=False)
    return seen[0].get("position_ids")
