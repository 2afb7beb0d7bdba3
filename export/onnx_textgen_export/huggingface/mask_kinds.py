"""What a transformers mask function lets a token see: all before it, a window, a chunk, or something that only its code knows.

The fused door leaves masks to the attention operator, so it must know each layer's kind of mask for certain, also where a window
is far longer than any text that is tried. A mask function is a function of indices: it is asked about pairs of positions around
the borders that its size would have, and the answers are compared with those of the kinds known here.
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
        """The sliding window, if it is one."""
        return self.size if self.kind == "window" else None

    @property
    def chunk(self) -> int | None:
        """The length of the pieces, if it is that."""
        return self.size if self.kind == "chunk" else None


def probe_positions(size: int) -> Tensor:
    """Positions around the beginning and around the borders of windows or chunks of `size`."""
    borders = [0, 3, 40, *(multiple * size + off for multiple in (1, 2, 3) for off in (-2, -1, 0, 1, 2))]
    return torch.tensor(sorted({position for position in borders if position >= 0}))


def classify(mask: MaskFunction, local_size: int | None) -> VisibleKind:
    """Which kind a mask function is; `local_size` is the window or chunk that transformers names beside it."""
    size = local_size or 0
    queries, keys = probe_positions(size)[:, None], probe_positions(size)[None, :]
    zero = torch.zeros(1, 1, dtype=torch.int64)
    try:
        seen = torch.as_tensor(mask(zero, zero, queries, keys)).expand(len(queries), keys.shape[1])
    except Exception:  # noqa: BLE001 - whatever a mask's code raises on plain indices, it is none of the kinds known
        return VisibleKind("unknown")
    causal = keys <= queries
    if torch.equal(seen, causal):
        return VisibleKind("causal")
    if size and torch.equal(seen, causal & (keys > queries - size)):
        return VisibleKind("window", size)
    if size and torch.equal(seen, causal & (keys // size == queries // size)):
        return VisibleKind("chunk", size)
    return VisibleKind("unknown")
