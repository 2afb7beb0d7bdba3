"""The interface of a runtime that continues token ids greedily, and what it is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from ...package.manifest import Manifest

Rounding = Literal["onnxruntime", "none", "own"]
"""How a runtime rounds activations where a package allows it (accuracy level 4): as the native kernels of ONNX Runtime do, with
which packages are made; not at all, so that products are in float32; or in its own way."""


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A prompt to continue, always by the most likely token."""

    prompt_ids: tuple[int, ...]
    """At least one id."""
    new_tokens: int
    """The continuation ends after as many, or before an id that ends a text."""


class Runtime(Protocol):
    """A runtime that is installed on this machine."""

    @property
    def name(self) -> str:
        """The libraries that compute, with their versions."""
        ...

    @property
    def rounding(self) -> Rounding:
        """How it rounds activations."""
        ...

    def continue_greedily(self, folder: Path, manifest: Manifest, tasks: Sequence[Task]) -> list[tuple[int, ...]]:
        """Open a package whose files were checked, and continue each prompt; an id that ends a text is not part of the result.

        Raises `PackageError` for a package that the runtime does not open, `ModelError` if it fails while it runs.
        """
        ...
