"""The token ids on which an export is compared with PyTorch: real text, ending with ids spread over the whole vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from ..errors import ExportError
from ..sources.source import Source
from .scenarios import LAST_STEPS, long_length

PROBE_TEXT = (Path(__file__).parents[1] / "texts" / "probe_text.txt").read_text(encoding="utf-8")
"""A story written for this purpose: a thousand tokens without repetition, so that a model cannot copy what it has to predict."""


def probe_ids(source: Source, tokenizer: Tokenizer | None) -> list[int]:
    """Token ids to compare on: text if there is a tokenizer, else ids drawn with a fixed seed; the last ids are spread evenly.

    The id of padding is none of them, also where the tokenizer has a text for it: some models count no position for it.
    """
    needed, vocab_size = long_length(source), source.geometry.vocab_size
    end = spread_ids(vocab_size, LAST_STEPS)
    count = needed - len(end)
    if tokenizer is None:
        ids = [int(i) for i in np.random.default_rng(1).integers(0, vocab_size, count)]
    else:
        ids = ids_of_text(tokenizer, vocab_size, count)
    return [(token_id + 1) % vocab_size if token_id == source.padding_id else token_id for token_id in ids + end]


def ids_of_text(tokenizer: Tokenizer, vocab_size: int, count: int) -> list[int]:
    """Ids of the probe text; raises `ExportError` for a tokenizer of another model."""
    ids: list[int] = []
    while len(ids) < count:
        more = tokenizer.encode(PROBE_TEXT, add_special_tokens=not ids).ids
        if not more or max(more) >= vocab_size:
            raise ExportError(
                f"the tokenizer gives ids up to {max(more, default=0)}, the model has {vocab_size} logits; "
                "they do not belong together"
            )
        ids += more
    return ids[:count]


def spread_ids(vocab_size: int, count: int) -> list[int]:
    """Ids from the first to the last, evenly."""
    return [int(i) for i in np.linspace(0, vocab_size - 1, count)]
