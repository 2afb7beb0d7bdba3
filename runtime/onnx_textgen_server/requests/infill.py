"""Texts between a prefix and a suffix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx_textgen import Model


def ends_of_infill(model: Model) -> dict[str, Any]:
    """The options by which such a text ends at a token that ends a middle, even if it does not end other texts."""
    tokens = model.tokenizer.infill
    if tokens is None or not tokens.end_ids:
        return {}

    def ends(token_ids: Sequence[int], _: str) -> bool:
        return token_ids[-1] in tokens.end_ids

    return {"stopping_criterion": ends}
