"""onnxruntime-genai, by its generator loop."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DeviceError, ModelError, PackageError, first_line
from ...package.manifest import GENAI_CONFIG, Manifest
from .protocol import Rounding, Task

INSTALL = "install it with: pip install onnxruntime-genai"


@dataclasses.dataclass(frozen=True, slots=True)
class Genai:
    """Implements `protocol.Runtime`."""

    library: Any
    """Its module."""

    @property
    def name(self) -> str:
        """See `Runtime.name`."""
        return f"onnxruntime-genai {self.library.__version__}"

    @property
    def rounding(self) -> Rounding:
        """See `Runtime.rounding`."""
        return "onnxruntime"

    def continue_greedily(self, folder: Path, manifest: Manifest, tasks: Sequence[Task]) -> list[tuple[int, ...]]:
        """See `Runtime.continue_greedily`."""
        if GENAI_CONFIG not in manifest.files:
            raise PackageError(
                f"{folder} has no {GENAI_CONFIG}, so onnxruntime-genai cannot open it; export it with --genai-config"
            )
        try:
            model = self.library.Model(str(folder))
        except RuntimeError as error:
            raise PackageError(f"onnxruntime-genai cannot open {folder}: {first_line(error)}") from error
        try:
            return [self.continuation(model, task, manifest.eos_ids) for task in tasks]
        except RuntimeError as error:
            raise ModelError(f"onnxruntime-genai failed while it ran: {first_line(error)}") from error

    def continuation(self, model: Any, task: Task, eos_ids: Sequence[int]) -> tuple[int, ...]:  # noqa: ANN401 - its model
        """Continue one prompt."""
        parameters = self.library.GeneratorParams(model)
        parameters.set_search_options(max_length=len(task.prompt_ids) + task.new_tokens, do_sample=False)
        generator = self.library.Generator(model, parameters)
        generator.append_tokens(np.array(task.prompt_ids, dtype=np.int32))
        found: list[int] = []
        while not generator.is_done():
            generator.generate_next_token()
            chosen = int(generator.get_next_tokens()[0])
            if chosen in eos_ids:
                break
            found.append(chosen)
        return tuple(found)


def find_genai() -> Genai:
    """Import the library; raises `DeviceError` if it is not installed."""
    try:
        return Genai(importlib.import_module("onnxruntime_genai"))
    except (ImportError, OSError) as error:
        raise DeviceError(f"onnxruntime-genai cannot be imported ({first_line(error)}); {INSTALL}") from error
