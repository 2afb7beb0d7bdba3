"""Find the kind of a transformers mask function: all earlier tokens, a window, a chunk, or something else.

The fused path leaves masks to the attention operator, so it must know each layer's kind of mask for certain, even where a window
is far longer than any text that is tried. A mask function is a function of indices: it is evaluated at pairs of positions around
the borders that its size implies, and the results are compared with those of the known kinds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch index, head index, query index, key index) -> bool, elementwise."""
Kind = Literal["causal", "window", "chunk", "unknown"]


@dataclasses.dataclass(frozen=True, slots=True)
class VisibleKind:
    """One kind of mask; `size` is the window or the chunk."""

    kind: Kind
    size: int = 0

    @property
    def window(self) -> int | None:
        """The length of the sliding window, if it is one."""
        return self.size if self.kind == "window" else None

    @property
    def chunk(self) -> int | None:
        """The length of the chunks, if it is a chunk mask."""
        return self.size if self.kind == "chunk" else None


def probe_positions(size: int) -> Tensor:
    """Positions around the beginning and around the borders of windows or chunks of `size`."""
    borders = [0, 3, 40, *(multiple * size + off for multiple in (1, 2, 3) for off in (-2, -1, 0, 1, 2))]
    return torch.tensor(sorted({position for position in borders if position >= 0}))


def classify(mask: MaskFunction, local_size: int | None) -> VisibleKind:
    """The kind of a mask function; `local_size`: the window or chunk that transformers passes with it."""
    size = local_size or 0
    queries, keys = probe_positions(size)[:, None], probe_positions(size)[None, :]
    zero = torch.zeros(1, 1, dtype=torch.int64)
    try:
        seen = torch.as_tensor(mask(zero, zero, queries, keys)).expand(len(queries), keys.shape[1])
    except Exception:  # noqa: BLE001 - a mask that fails on plain indices is none of the known kinds
        return VisibleKind("unknown")
    causal = keys <= queries
    if torch.equal(seen, causal):
        return VisibleKind("causal")
    if size and torch.equal(seen, causal & (keys > queries - size)):
        return VisibleKind("window", size)
    if size and torch.equal(seen, causal & (keys // size == queries // size)):
        return VisibleKind("chunk", size)
    return VisibleKind("unknown")
