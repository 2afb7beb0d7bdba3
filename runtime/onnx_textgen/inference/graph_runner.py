"""One run of a graph: sets its inputs from token ids, mask and cache, and returns its output as float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backends.engine_errors import model_errors
from ..backends.protocol import Graph, Run
from ..backends.signature import ADAPTER_MASK, ENCODER_MASK, IMAGE_EMBEDS, POSITION_OFFSETS, WINDOW_LENGTHS
from ..cancellation import CancelScope
from ..images.image_rows import ImageRows
from ..images.positions import AXES, position_offsets
from ..kv_cache.protocol import Cache
from ..kv_cache.shared import SharedCache
from .capabilities import Capabilities
from .source_rows import SourceRows
from .verifier import Verifier

Logits = npt.NDArray[np.float32]


class GraphRunner:
    """Runs a graph for one of its outputs; `extra_outputs` name further ones."""

    def __init__(
        self,
        graph: Graph,
        capabilities: Capabilities,
        output: str,
        extra_outputs: Sequence[str],
        *,
        rows: int,
        images: ImageRows | None = None,
        held: Callable[[int], Sequence[int]] = lambda row: (),
    ) -> None:
        """`held`: the ids that a row holds."""
        self.capabilities, self.output, self.extra_outputs = capabilities, output, tuple(extra_outputs)
        self.roles = graph.roles
        self.last_extra_outputs: list[npt.NDArray[Any]] = []
        """The extra outputs of the last run, in their order."""
        self.last_only = np.array([-1], dtype=np.int64)
        """The positions that select the logits of the last token."""
        self.last_only.flags.writeable = False
        self.sources = SourceRows(graph.encoder_inputs, rows)
        """The source of each row of an encoder-decoder."""
        self.adapter_mask: npt.NDArray[np.float32] = np.zeros((rows, 1, len(graph.adapters)), np.float32)
        """[rows, 1, adapters]: 1 for the adapter of each row."""
        self.images = images
        """The pictures that ids below 0 name."""
        self.held = held
        self.no_rows: npt.NDArray[Any] | None = None
        """The rows of a run without pictures: the same array each time, which is bound once. None: the graph reads no pictures."""
        if (taken := self.roles.get(IMAGE_EMBEDS)) is not None:
            self.no_rows = np.zeros((1, int(taken.shape[-1])), taken.dtype)
            self.no_rows.flags.writeable = False

    def run(
        self,
        cache: Cache,
        ids: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        rows: range,
        *,
        advanced: Sequence[int],
        scope: CancelScope,
        mask: npt.NDArray[np.int64] | None = None,
        verifier: Verifier | None = None,
    ) -> Logits:
        """Run the graph, or that of `verifier`, on ids [rows, new]; returns logits [rows, positions or new, vocabulary].

        `mask` [rows, past + new], of rows that are empty; None: ones for all past and new tokens. `advanced`: tokens by which each
        of the rows grows.
        """
        new = ids.shape[1]
        with model_errors("ran"):
            if verifier is None:
                run = cache.begin(rows, new, advanced)
            else:
                assert isinstance(cache, SharedCache), "a verifier needs a shared cache"
                run = verifier.begin(cache, rows.start, new)
            ends = advanced if mask is not None else [cache.lengths[row] + new for row in rows]
            mask = cache.mask(rows, new) if mask is None else mask
            if self.no_rows is not None:
                ids = self.with_images(run, ids, rows, self.no_rows, scope)
            self.set_input(run, "input_ids", ids)
            self.set_input(run, "attention_mask", mask)
            if "position_ids" in self.roles:
                self.set_input(run, "position_ids", (mask.cumsum(1) - 1)[:, -new:].clip(min=0))
            self.set_input(run, "logits_positions", positions)
            if "num_logits_to_keep" in self.roles:
                self.set_input(run, "num_logits_to_keep", np.array(1 if positions is self.last_only else 0))  # 0: all
            if ADAPTER_MASK in self.roles:
                self.set_input(run, ADAPTER_MASK, self.adapter_mask[rows.start : rows.stop])
            for name, array in self.sources.inputs(rows).items():
                if name == ENCODER_MASK:
                    self.set_input(run, name, array)
                else:
                    run.set_input(name, array)
            if WINDOW_LENGTHS in self.roles:
                for role, array in cache.windows.inputs(cache.lengths, rows, ends, new).items():
                    self.set_input(run, role, array)
            if "use_cache_branch" in self.roles:
                self.set_input(run, "use_cache_branch", np.array(mask.shape[1] > new))
            shape = len(ids), self.rows_of_logits(new, positions), self.capabilities.width
            found, self.last_extra_outputs = scope.run(lambda: run.compute(self.output, shape, self.extra_outputs), run.stop)
            logits: Logits = np.asarray(found, dtype=np.float32)
            cache.end(rows, advanced)
        return logits

    def with_images(
        self, run: Run, ids: npt.NDArray[np.int64], rows: range, no_rows: npt.NDArray[Any], scope: CancelScope
    ) -> npt.NDArray[np.int64]:
        """Set what a run takes of pictures, with `no_rows` for a run of text alone; returns ids that name their rows."""
        if POSITION_OFFSETS in self.roles:
            self.set_input(run, POSITION_OFFSETS, self.offsets(ids, rows))
        named, taken = (ids, no_rows) if self.images is None or ids.min() >= 0 else self.images.taken(ids, scope)
        self.set_input(run, IMAGE_EMBEDS, taken)
        return named

    def offsets(self, ids: npt.NDArray[np.int64], rows: range) -> npt.NDArray[np.int64]:
        """How far the positions [3, rows, new] of a run are from places in the text."""
        if self.images is None:
            return np.zeros((AXES, *ids.shape), np.int64)
        pairs = zip(rows, ids.tolist(), strict=True)
        return np.stack([position_offsets(self.held(row), new, self.images) for row, new in pairs], axis=1)

    def rows_of_logits(self, new: int, positions: npt.NDArray[np.int64]) -> int:
        """For how many of `new` tokens the graph returns logits, if those at `positions` are requested."""
        if "logits_positions" in self.roles:
            return len(positions)
        keeps_last = "num_logits_to_keep" in self.roles and positions is self.last_only
        return 1 if self.capabilities.gives_last_only or keeps_last else new

    def set_input(self, run: Run, role: str, array: npt.NDArray[Any]) -> None:
        """Set the input of a role, with the graph's type and number of dimensions; does nothing if the graph has no such input."""
        if (taken := self.roles.get(role)) is not None:
            if array.ndim != len(taken.shape):
                array = array.reshape((1,) * len(taken.shape))
            run.set_input(taken.name, np.asarray(array, dtype=taken.dtype, order="C"))
