"""Encoder states of each row's source as inputs of the decoder, joined for a run over several rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backends.protocol import mask_of
from ..backends.signature import ENCODER_MASK, ENCODER_STATES, Input
from ..encoders.encoder import Encoded


class SourceRows:
    """The source of each row of a decoder; None for a row that has none yet."""

    def __init__(self, inputs: Mapping[str, Input], rows: int) -> None:
        self.by_name = inputs
        self.rows: list[Encoded | None] = [None] * rows
        self.joined: tuple[tuple[Encoded | None, ...], dict[str, npt.NDArray[Any]]] | None = None
        """The sources of the last run, and its inputs."""

    def inputs(self, rows: range) -> dict[str, npt.NDArray[Any]]:
        """Read-only inputs of a run over these rows: the mask [rows, source], and each of `by_name`, padded on the right.

        The same arrays are returned while rows and sources stay the same, so that they are bound once.
        """
        if not self.by_name:
            return {}
        held = tuple(self.rows[row] for row in rows)
        if self.joined is None or self.joined[0] != held:  # two sources are equal if they are one object
            self.joined = held, self.join(held)
        return self.joined[1]

    def join(self, held: Sequence[Encoded | None]) -> dict[str, npt.NDArray[Any]]:
        """Join sources; a row without one gets a token of zeros, because attention over nothing is not a number."""
        lengths = [1 if each is None else each.length for each in held]
        found: dict[str, npt.NDArray[Any]] = {ENCODER_MASK: mask_of(lengths)}
        for name, taken in self.by_name.items():
            axis = 1 if name == ENCODER_STATES else 2
            if len(held) == 1 and held[0] is not None:
                found[name] = np.ascontiguousarray(held[0].tensors[name], taken.dtype)
                continue
            shape = next(each.tensors[name].shape for each in held if each is not None)
            sizes = [len(held), *shape[1:]]
            sizes[axis] = max(lengths)
            found[name] = np.zeros(sizes, taken.dtype)
            for row, each in enumerate(held):
                if each is not None:
                    found[name][row][(slice(None),) * (axis - 1) + (slice(lengths[row]),)] = each.tensors[name][0]
        for array in found.values():
            array.flags.writeable = False
        return found
