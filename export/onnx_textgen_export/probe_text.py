"""The token ids on which an export is compared with PyTorch: real text, and at its end ids from all over the vocabulary."""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer

from .errors import ExportError
from .parity import LAST_STEPS, long_length
from .sources import Source

PROBE_TEXT = (
    "The ferry left the harbour a little after six, when the fog had begun to lift. Anna counted the gulls on the railing and "
    "wrote the number in her notebook: seven. Her brother said there were eight, because one had flown off while she was "
    'writing. "Does a bird count if it has left?" she asked. Nobody knew. By noon they could see the island, 40 houses and a '
    "white tower, and the cook brought them soup; it was hot, salty and very good.\n"
)


def probe_ids(source: Source, tokenizer: Tokenizer | None) -> list[int]:
    """Real token ids to compare on: text where there is a tokenizer, else ids drawn once and for all; a spread at the end."""
    needed, vocab_size = long_length(source), source.geometry.vocab_size
    end = spread_ids(vocab_size, LAST_STEPS)
    if tokenizer is None:
        return [int(i) for i in np.random.default_rng(1).integers(0, vocab_size, needed - len(end))] + end
    ids: list[int] = []
    while len(ids) < needed - len(end):
        more = tokenizer.encode(PROBE_TEXT, add_special_tokens=not ids).ids
        if not more or max(more) >= vocab_size:
            raise ExportError(
                f"the tokenizer gives ids up to {max(more, default=0)}, the model has {vocab_size} logits; "
                "they do not belong together"
            )
        ids += more
    return ids[: needed - len(end)] + end


def spread_ids(vocab_size: int, count: int) -> list[int]:
    """Ids from the first to the last, evenly."""
    return [int(i) for i in np.linspace(0, vocab_size - 1, count)]
