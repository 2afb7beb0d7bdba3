"""An open graph, whichever engine runs it: what a decoder asks of ONNX Runtime (`session`) and of OpenVINO (`openvino_session`).

A graph comes with the cache that suits its engine (`cache`), and a cache prepares the runs.
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
    """`cpu` or `cuda`, as ONNX Runtime's bindings name it; `openvino` or `openvino:bf16`."""
    index: int = 0
    """Of several GPUs."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}" if self.kind == "cuda" else self.kind


CPU = Device("cpu")


class Graph(Protocol):
    """What it takes, what it gives, and where it runs."""

    @property
    def device(self) -> Device:
        """Where it runs."""
        ...

    @property
    def threads(self) -> int | None:
        """How many it was asked to take; None: the engine's own choice."""
        ...

    @property
    def inputs(self) -> Values:
        """Those with a default included."""
        ...

    @property
    def outputs(self) -> Values:
        """Shape and type by name."""
        ...

    @property
    def hints(self) -> Hints:
        """What inputs and outputs do not tell."""
        ...

    @property
    def cache_tensors(self) -> tuple[CacheTensor, ...]:
        """All that the graph carries from run to run."""
        ...

    @property
    def roles(self) -> dict[str, Input]:
        """What the graph takes beside its cache, by role; raises `PackageError` for what no decoder here can give."""
        ...

    @property
    def best_part(self) -> int:
        """Tokens of a prompt at a time that the engine is fastest with, or nearly: a caller can stop in between."""
        ...

    @property
    def rotary_switch(self) -> int | None:
        """The length beyond which the graph turns keys by other frequencies, so that a text which crosses it is fed anew."""
        ...

    def name_of(self, output: str) -> str:
        """The graph's name of the logits or of the hidden states, whether it has them or not."""
        ...


class ClosedGraph:
    """What a closed model has in the place of its graph: whatever asks for anything of it is told."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ModelError("this model was closed; load it again")


class Run(Protocol):
    """One run of a graph, prepared by a cache."""

    def set_input(self, name: str, array: npt.NDArray[Any]) -> None:
        """Set an input that is no part of the cache; the array is in order, of the input's type, and if read-only for good."""
        ...

    def compute(
        self, output: str, shape: Sequence[int], beside: Sequence[str] = ()
    ) -> tuple[npt.NDArray[Any], list[npt.NDArray[Any]]]:
        """Run the graph and return one of its outputs, whose shape is known, and those `beside` it."""
        ...

    def stop(self) -> None:
        """Let `compute` raise soon, from any thread; before it begins, too."""
        ...


def mask_of(lengths: Sequence[int], width: int | None = None) -> npt.NDArray[np.int64]:
    """The attention mask of rows of so many tokens, which come first; `width`: its columns, if not as many as the longest has.

    >>> mask_of([3, 1]).tolist()
    [[1, 1, 1], [1, 0, 0]]
    """
    columns = np.arange(max(lengths) if width is None else width)
    return (columns < np.array(lengths)[:, None]).astype(np.int64)
