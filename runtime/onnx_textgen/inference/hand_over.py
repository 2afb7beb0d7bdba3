"""Moves keys and values between a row and the second engine that computes its long prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backends.cache_codes import from_codes, to_codes
from ..kv_cache.paged import PagedCache
from ..kv_cache.shared import SharedCache
from ..kv_cache.snapshot import Snapshot
from .decoder import Decoder
from .prompt_engine import PromptEngine

TOKENS = 2
"""The axis of tokens in keys and values."""


def new_reader(engine: PromptEngine, tokens: int, *, exact_history: bool = True) -> Decoder:
    """Return an empty decoder of one row with memory for `tokens` tokens on the second engine; raises `PackageError`."""
    return Decoder(engine.graph(), engine.geometry, capacity=tokens, exact_history=exact_history)


def lend(decoder: Decoder, row: int, reader: Decoder, length: int) -> int:
    """Copy the first `length` tokens of a row to an empty decoder of the second engine.

    Returns the first token that layers with a window still have: zeros stand for those before it, to which no later token attends.
    """
    if not length:
        return 0
    assert isinstance(decoder.cache, SharedCache) and decoder.prompt_engine is not None, "others have no second engine"
    views, first, arrays = decoder.cache.views(row, length), 0, dict[str, npt.NDArray[Any]]()
    for tensor in reader.cache.tensors:
        array = in_type(views[tensor.past], tensor.dtype, decoder.prompt_engine.scales.get(tensor.past))
        if missing := length - array.shape[TOKENS]:
            first, array = missing, np.pad(array, [(missing, 0) if axis == TOKENS else (0, 0) for axis in range(array.ndim)])
        arrays[tensor.past] = array
    token_ids, is_beyond = tuple(decoder.token_ids[row][:length]), decoder.uses_long_rope[row]
    exact_length = min(decoder.exact_length[row], length)
    reader.restore(Snapshot(token_ids, arrays, {}, is_beyond, reader.origin(0), exact_length=exact_length), length)
    return first


def take_over(reader: Decoder, decoder: Decoder, row: int, first: int) -> None:
    """Make a row hold the prompt, or the part of it, that the second engine has computed; `first`: see `lend`."""
    if not reader.is_inconsistent and (length := reader.reusable_length()) > len(decoder.token_ids[row]):
        token_ids, is_beyond = tuple(reader.token_ids[0][:length]), reader.uses_long_rope[0]
        tensors = HandedOver(reader, decoder, length, first)
        exact_length = min(reader.exact_length[0], length)
        snapshot = Snapshot(token_ids, tensors, {}, is_beyond, decoder.origin(row), exact_length=exact_length)
        decoder.restore(snapshot, length, row=row)


class HandedOver(Mapping[str, npt.NDArray[Any]]):
    """Keys and values of a prompt, each copied from the second engine when it is asked for: all at once take time and memory."""

    def __init__(self, reader: Decoder, decoder: Decoder, length: int, first: int) -> None:
        assert isinstance(reader.cache, PagedCache) and decoder.prompt_engine is not None, "the second engine is OpenVINO"
        self.cache, self.length, self.first, self.scales = reader.cache, length, first, decoder.prompt_engine.scales
        self.sources = {tensor.past: tensor for tensor in reader.cache.tensors}
        self.targets = {tensor.past: tensor for tensor in decoder.cache.tensors}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        taken = self.cache.take_one(self.sources[name], 0, self.length)
        array = in_type(taken, self.targets[name].dtype, self.scales.get(name))
        return array if self.targets[name].window is None else array[:, :, self.first :]

    def __iter__(self) -> Iterator[str]:
        return iter(self.targets)

    def __len__(self) -> int:
        return len(self.targets)


def in_type(array: npt.NDArray[Any], dtype: np.dtype[Any], scales: npt.NDArray[np.float32] | None) -> npt.NDArray[Any]:
    """Keys or values in the type of another engine's cache; what came from it returns unchanged.

    `scales`: those of int8. Bfloat16, whose bits are kept as uint16, is the upper half of a float32.
    """
    if array.dtype == dtype:
        return array
    if scales is not None:
        return to_codes(array, scales) if dtype == np.int8 else from_codes(array, scales)
    assert np.uint16 in (array.dtype, dtype), "float32 and bfloat16 are the only others"
    return (
        (array.view(np.uint32) >> 16).astype(np.uint16) if dtype == np.uint16 else (array.astype(np.uint32) << 16).view(np.float32)
    )
