"""The interface of an open graph, which each engine implements (`onnxruntime_session`, `openvino/session.py`) and a decoder uses.

`kv_cache` has a cache for each engine, which prepares the runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import ModelError
from .signature import CacheTensor, Hints, Input, Values


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """Where a model runs."""

    kind: str
    """`cpu` or `cuda`, as in ONNX Runtime's bindings; `openvino` or `openvino:bf16`; a plug-in's device."""
    index: int = 0
    """Number of the GPU."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}" if self.index or self.kind == "cuda" else self.kind


CPU = Device("cpu")


class Graph(Protocol):
    """An open graph: its inputs, its outputs, and where it runs."""

    @property
    def device(self) -> Device:
        """The device that the graph runs on."""
        ...

    @property
    def threads(self) -> int | None:
        """The number of threads that the caller requested; None: the engine's choice."""
        ...

    @property
    def inputs(self) -> Values:
        """Shape and type by name, including inputs that have a default."""
        ...

    @property
    def outputs(self) -> Values:
        """Shape and type by name."""
        ...

    @property
    def hints(self) -> Hints:
        """Facts that the inputs and outputs do not show."""
        ...

    @property
    def cache_tensors(self) -> tuple[CacheTensor, ...]:
        """Every tensor that the graph carries from run to run."""
        ...

    @property
    def roles(self) -> dict[str, Input]:
        """The inputs outside the cache, by role; raises `PackageError` for an input that the decoder cannot provide."""
        ...

    @property
    def encoder_inputs(self) -> dict[str, Input]:
        """The inputs that the encoder of an encoder-decoder gives, by name; empty for a decoder."""
        ...

    @property
    def part_size(self) -> int:
        """Tokens per prefill run at which the engine is fastest, or almost: a smaller part lets a caller stop sooner."""
        ...

    @property
    def short_part_size(self) -> int:
        """Tokens of a part of a prompt that holds up other texts for about as long as one step of them."""
        ...

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of a run that the device is known to compute right; None: any number."""
        ...

    @property
    def joins_rows(self) -> bool:
        """Whether one run can take tokens of several rows."""
        ...

    @property
    def rotary_switch(self) -> int | None:
        """The length beyond which the graph rotates keys with other frequencies: a text that crosses it is fed again from 0."""
        ...

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the LoRA adapters in the graph, in the order of its input `adapter_mask`; empty if it has none."""
        ...

    def name_of(self, output: str) -> str:
        """The graph's name for `logits` or `hidden_states`, whether the graph has that output or not."""
        ...


class ClosedGraph:
    """Replaces the graph of a closed model: every use raises `ModelError`."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ModelError("this model was closed; load it again")


class Run(Protocol):
    """One run of a graph, prepared by a cache."""

    def set_input(self, name: str, array: npt.NDArray[Any]) -> None:
        """Set an input outside the cache to a contiguous array of the input's type; a read-only array must never change."""
        ...

    def compute(
        self, output: str, shape: Sequence[int], extra_outputs: Sequence[str] = ()
    ) -> tuple[npt.NDArray[Any], list[npt.NDArray[Any]]]:
        """Run the graph; returns `output`, which has the given shape, and the extra outputs in their order."""
        ...

    def stop(self) -> None:
        """Make `compute` raise soon; callable from any thread, also before `compute` begins."""
        ...


def mask_of(lengths: Sequence[int], width: int | None = None) -> npt.NDArray[np.int64]:
    """Make the attention mask [rows, width] of rows with these lengths: ones, then zeros. `width` defaults to the longest row.

    >>> mask_of([3, 1]).tolist()
    [[1, 1, 1], [1, 0, 0]]
    """
    columns = np.arange(max(lengths) if width is None else width)
    return (columns < np.array(lengths)[:, None]).astype(np.int64)
