"""The memory that a batch of texts will take, computed from the graph before any is allocated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from ..errors import PromptError
from ..machine_limits import available_bytes

if TYPE_CHECKING:  # `doctor` asks for free memory even if NumPy is missing
    from ..backends.signature import CacheTensor, Input

BYTES_OF_FLOAT32 = 4
SMALL = 256 * 2**20
"""Bytes below which free memory is not checked."""
MOST_COPIES = 6
"""Of the windows of a text."""
MOST_COPY_BYTES = 128 * 2**20
"""Of them together, but that one copy is always made."""
KEPT_SHARE = 8
"""The free memory divided by the part of it that earlier prompts may take: enough for an agent's, of some ten thousand tokens."""


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Keys, values and states of `batch` texts of `tokens` tokens each; the weights are not counted."""

    tokens: int
    batch: int
    bytes_per_token: int
    """Keys and values of one token of one text, in the layers that hold all of it."""
    state_bytes: int
    """Recurrent states of one text, of any length, and what the encoder of an encoder-decoder gives for it."""
    window_bytes: int = 0
    """Keys and values of one text in layers with a sliding window: the end of the text, and copies where a chat may return to."""
    second_bytes: int = 0
    """Keys and values of one prompt on a second engine, which computes one prompt at a time."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all texts."""
        return self.batch * (self.tokens * self.bytes_per_token + self.window_bytes + self.state_bytes) + self.second_bytes


def plan(
    tensors: Iterable[CacheTensor], tokens: int, batch: int = 1, *, source_bytes: int = 0, second_bytes: int = 0
) -> MemoryPlan:
    """Plan the memory for the cache tensors of a graph.

    `source_bytes`: those of each text's source, of an encoder-decoder; `second_bytes`: see `MemoryPlan`.
    """
    tensors = tuple(tensors)
    per_token = sum(tensor.bytes_for(1) for tensor in tensors if tensor.length_axis is not None and tensor.window is None)
    states = sum(tensor.bytes_for(0) for tensor in tensors if tensor.length_axis is None)
    windowed = [tensor for tensor in tensors if tensor.window is not None]
    windows = sum(tensor.bytes_for(tokens) for tensor in windowed)
    if any(tensor.window is not None and tokens > tensor.window.capacity for tensor in windowed):
        windows += most_copies(windowed) * copy_bytes(windowed)
    return MemoryPlan(tokens, batch, per_token, states + source_bytes, windows, second_bytes)


def whole_bytes(tensors: Iterable[CacheTensor], tokens: int) -> int:
    """Return the bytes of one text in the second engine's cache: float32, sliding windows ignored."""
    return sum(math.prod(tensor.sized(1, tokens)) * BYTES_OF_FLOAT32 for tensor in tensors)


def copy_bytes(windowed: Iterable[CacheTensor]) -> int:
    """Bytes of one copy of the windows of a text; `windowed`: the tensors of layers with a window."""
    return sum(tensor.bytes_for(tensor.window.copied) for tensor in windowed if tensor.window is not None)


def most_copies(windowed: Collection[CacheTensor]) -> int:
    """The most copies of windows that a text has at a time: at least one."""
    return max(1, min(MOST_COPIES, MOST_COPY_BYTES // max(1, copy_bytes(windowed))))


def source_bytes(inputs: Mapping[str, Input], tokens: int) -> int:
    """Bytes of what an encoder gives for a source of `tokens` tokens: once as it was read, once joined with other rows."""
    sizes = (math.prod(size for size in each.shape[1:] if isinstance(size, int)) * each.dtype.itemsize for each in inputs.values())
    return 2 * tokens * sum(sizes)


def bytes_for_prefixes() -> int:
    """Return the bytes that keys and values of earlier prompts may take, if nobody has said so."""
    return max(SMALL, (available_bytes() or 0) // KEPT_SHARE)


def fits(wanted: MemoryPlan, held_bytes: int = 0) -> bool:
    """Return whether memory is free for the texts, less the `held_bytes` already allocated; True if the system does not tell."""
    needed = wanted.total_bytes - held_bytes
    if needed < SMALL:
        return True
    free = available_bytes()
    return free is None or needed <= free


def check_fits(wanted: MemoryPlan) -> None:
    """Raise `PromptError` if the keys and values of all texts do not fit in memory together."""
    if fits(wanted):
        return
    of_texts, fewer = (f"of {wanted.batch:,} texts ", ", or ask for fewer texts") if wanted.batch > 1 else ("", "")
    raise PromptError(
        f"keys and values {of_texts}of {wanted.tokens:,} tokens take {wanted.total_bytes / 1e9:.1f} GB "
        f"({wanted.bytes_per_token:,} bytes each) and {(available_bytes() or 0) / 1e9:.1f} GB of memory are free; "
        f"shorten the text, or lower max_new_tokens{fewer}"
    )
