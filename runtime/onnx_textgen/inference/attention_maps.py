"""How much each token of a text looks at each token before it: the attention of every layer and head.

A package that was exported with `--attention-maps` has a second graph over the same weights, which gives them. Ordinary generation
never opens it, so it costs nothing there.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..backends.onnxruntime_session import Session
from ..errors import PackageError, PromptError
from ..package.manifest import Geometry
from .decoder import Decoder
from .embeddings import pieces

ATTENTIONS = "attentions."
"""Begins the name of the graph's output of a layer; the layer's number follows."""
MOST_BYTES = 256 * 2**20
"""A text's maps take no more than that."""
PIECE_BYTES = 64 * 2**20
"""Nor does one run of the graph: a long text is fed in pieces."""

Maps = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class AttentionMaps:
    """Who looked at whom in a text."""

    token_ids: tuple[int, ...]
    """Of the whole text."""
    pieces: tuple[str, ...]
    """What a person reads for each."""
    layers: tuple[int, ...]
    """The numbers, from 0, of the layers that attend: all of them in most models."""
    weights: Maps
    """[layers, heads, rows, tokens]: shares after softmax, from 0 to 1. A row is a token that looks, the rows are the last of the
    text's tokens, and a column is a token that is looked at. What comes after a token is 0, and a row adds up to 1 (to less in a
    model with attention sinks, which take their share)."""


def attending_layers(session: Session) -> dict[int, str]:
    """The outputs that give attention, by the number of their layer, in order."""
    numbers = [name.removeprefix(ATTENTIONS) for name in session.outputs if name.startswith(ATTENTIONS)]
    return {number: f"{ATTENTIONS}{number}" for number in sorted(int(each) for each in numbers if re.fullmatch("[0-9]{1,5}", each))}


def read_maps(
    session: Session, geometry: Geometry, token_ids: Sequence[int], *, rows: int | None = None, size: int | None = None
) -> tuple[tuple[int, ...], Maps]:
    """The numbers of the layers that attend, and the attention [layers, heads, rows, tokens] of the last `rows` tokens.

    rows: default all; size: most tokens of a run, fewer where memory asks for it. Raises `PromptError` for a text whose maps take
    more than `MOST_BYTES`, and `PackageError` for a graph that does not give them.
    """
    layers = attending_layers(session)
    if not layers:
        raise PackageError("the graph gives no attention; export the model again with --attention-maps")
    tokens = len(token_ids)
    rows = tokens if rows is None else min(rows, tokens)
    decoder = Decoder(session, geometry, capacity=tokens, extra_outputs=list(layers.values()))
    row_bytes = 4 * len(layers) * geometry.heads * tokens
    most = max(1, min(size or decoder.chunk, PIECE_BYTES // row_bytes))
    parts = list(pieces(tokens, most, decoder.capabilities.rope_switch_length))
    longest = max(end - start for start, end in parts)
    if (wanted := max(rows, longest) * row_bytes) > MOST_BYTES:
        raise PromptError(
            f"the attention of {tokens:,} tokens in {len(layers)} layers of {geometry.heads} heads takes {wanted / 2**20:,.0f} MiB "
            f"and {MOST_BYTES // 2**20} are the most; give a shorter text, or ask for the last tokens alone, as with last=32"
        )
    maps = np.zeros((len(layers), geometry.heads, rows, tokens), dtype=np.float32)
    first = tokens - rows
    for start, end in parts:
        decoder.feed(token_ids[start:end])
        skipped = max(first - start, 0)
        if start + skipped >= end:
            continue
        for layer, found in enumerate(decoder.last_extra_outputs):
            if found.shape != (1, geometry.heads, end - start, end):
                raise PackageError(f"the graph gave the attention {found.shape} for {end - start} of {end} tokens")
            maps[layer, :, start + skipped - first : end - first, :end] = found[0, :, skipped:]
    return tuple(layers), maps
