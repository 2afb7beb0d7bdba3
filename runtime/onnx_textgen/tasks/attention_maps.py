"""Attention maps: how much each token of a text attends to each token before it, in every layer and head.

In an encoder-decoder, it also attends to each token of the source.

A package that was exported with `--attention-maps` has a second graph over the same weights, which returns them. Generation never
opens that graph, so it costs nothing there.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..backends.onnxruntime_session import OnnxRuntimeSession
from ..encoders.encoder import Encoder
from ..errors import PackageError, PromptError
from ..inference.decoder import Decoder
from ..package.manifest import Geometry
from .embeddings import part_bounds

ATTENTIONS, CROSS_ATTENTIONS = "attentions.", "cross_attentions."
"""Prefixes of the outputs of a layer, over the text and over the source; the layer's number follows."""
MOST_BYTES = 256 * 2**20
"""The most bytes of a text's maps."""
PART_BYTES = 64 * 2**20
"""The most bytes of the maps of one run: a long text is fed in parts."""

Maps = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class AttentionMaps:
    """The attention weights of a text."""

    token_ids: tuple[int, ...]
    """Ids of the whole text."""
    pieces: tuple[str, ...]
    """The text of each id, for a person to read."""
    layers: tuple[int, ...]
    """The numbers, from 0, of the layers with attention: all of them in most models."""
    weights: Maps
    """[layers, heads, rows, tokens]: weights after softmax, from 0 to 1. Row: the attending token, one of the last tokens of the
    text. Column: the token attended to; 0 for later tokens. A row adds up to 1, or to less in a model with attention sinks, which
    take a share."""
    source_ids: tuple[int, ...]
    """Ids of the source that an encoder-decoder has read; empty for a decoder."""
    source_pieces: tuple[str, ...]
    """The text of each of these ids."""
    cross_weights: Maps
    """[layers, heads, rows, source tokens]: the same for the tokens of the source, without columns for a decoder. A row adds up
    to 1; where a layer attends to text and source at once (T5Gemma 2), both rows together do."""


def attending_layers(session: OnnxRuntimeSession) -> dict[int, str]:
    """The outputs with attention weights, by the number of their layer, in ascending order."""
    numbers = [name.removeprefix(ATTENTIONS) for name in session.outputs if name.startswith(ATTENTIONS)]
    return {number: f"{ATTENTIONS}{number}" for number in sorted(int(each) for each in numbers if re.fullmatch("[0-9]{1,5}", each))}


def read_maps(
    session: OnnxRuntimeSession,
    geometry: Geometry,
    token_ids: Sequence[int],
    *,
    rows: int | None = None,
    size: int | None = None,
    encoder: Encoder | None = None,
    source_ids: Sequence[int] = (),
) -> tuple[tuple[int, ...], Maps, Maps]:
    """The numbers of the layers with attention, and the weights [layers, heads, rows, tokens] of the last `rows` tokens.

    Then those over the source [layers, heads, rows, source], which `encoder` reads; without one there are no columns. `rows`:
    default all; `size`: the most tokens per run, fewer if memory requires it. Raises `PromptError` if the maps take more than
    `MOST_BYTES`, and `PackageError` if the graph does not return them.
    """
    layers = attending_layers(session)
    if not layers:
        raise PackageError("the graph returns no attention weights; export the model again with --attention-maps")
    tokens, read = len(token_ids), 0 if encoder is None else len(source_ids)
    rows = tokens if rows is None else min(rows, tokens)
    over_source = [f"{CROSS_ATTENTIONS}{layer}" for layer in layers] if encoder is not None else []
    decoder = Decoder(session, geometry, capacity=tokens, extra_outputs=[*layers.values(), *over_source], encoder=encoder)
    row_bytes = 4 * len(layers) * geometry.heads * (tokens + read)
    most = max(1, min(size or decoder.part_size, PART_BYTES // row_bytes))
    if decoder.capabilities.takes_single_tokens:
        most = 1
    parts = list(part_bounds(tokens, most, decoder.capabilities.rope_switch_length))
    longest = max(end - start for start, end in parts)
    if (wanted := max(rows, longest) * row_bytes) > MOST_BYTES:
        raise PromptError(
            f"the attention of {tokens + read:,} tokens in {len(layers)} layers of {geometry.heads} heads takes "
            f"{wanted / 2**20:,.0f} MiB and {MOST_BYTES // 2**20} are the most; "
            "give a shorter text, or request the last tokens only, as with last=32"
        )
    if encoder is not None:
        decoder.read_source(source_ids)
    maps, cross = (np.zeros((len(layers), geometry.heads, rows, columns), dtype=np.float32) for columns in (tokens, read))
    first = tokens - rows
    for start, end in parts:
        decoder.feed(token_ids[start:end])
        skipped = max(first - start, 0)
        if start + skipped >= end:
            continue
        for index, found in enumerate(decoder.last_extra_outputs):
            layer, (filled, columns) = index % len(layers), (maps, end) if index < len(layers) else (cross, read)
            if found.shape != (1, geometry.heads, end - start, columns):
                raise PackageError(f"the graph returned attention weights of shape {found.shape} for {end - start} of {end} tokens")
            filled[layer, :, start + skipped - first : end - first, :columns] = found[0, :, skipped:]
    for each in (maps, cross):
        each[each < np.finfo(np.float32).tiny] = 0  # on ARM the softmax of a masked position is 4e-40
    return tuple(layers), maps, cross
