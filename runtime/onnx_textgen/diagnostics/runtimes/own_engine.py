"""Our own loop over one of the engines, as one more runtime: ONNX Runtime, or OpenVINO."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ...api.loading import load
from ...backends.openvino.session import PRECISIONS, import_openvino
from ...inference.decoder import Decoder
from ...inference.prefill import prefill
from ...package.manifest import Manifest
from ..machine import examine_cpu, versions
from .protocol import Rounding, Task

EIGHT_BIT_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"})
"""Instruction sets for products of 8 bits; where a processor has one, OpenVINO rounds activations for it."""


@dataclasses.dataclass(frozen=True, slots=True)
class OwnEngine:
    """Implements `protocol.Runtime`."""

    device: str
    """As `load` takes it."""
    threads: int | None = None

    @property
    def name(self) -> str:
        """See `Runtime.name`."""
        found = versions(("openvino",) if self.device in PRECISIONS else ("onnxruntime", "onnxruntime-gpu"))
        return " ".join([*(f"{name} {version}" for name, version in found.items()), f"({self.device})"])

    @property
    def rounding(self) -> Rounding:
        """See `Runtime.rounding`."""
        if self.device not in PRECISIONS:
            return "onnxruntime"
        return "own" if PRECISIONS[self.device] != "f32" or EIGHT_BIT_PRODUCTS.intersection(examine_cpu()[1]) else "none"

    def continue_greedily(self, folder: Path, manifest: Manifest, tasks: Sequence[Task]) -> list[tuple[int, ...]]:
        """See `Runtime.continue_greedily`."""
        with load(folder, device=self.device, threads=self.threads) as model:
            return [continuation(model.new_context(), task, manifest.eos_ids) for task in tasks]


def continuation(decoder: Decoder, task: Task, eos_ids: Sequence[int]) -> tuple[int, ...]:
    """Continue a prompt from an empty decoder by the largest logit alone: no penalty, no guard, no default of the package."""
    found: list[int] = []
    logits = prefill(decoder, task.prompt_ids)
    while len(found) < task.new_tokens and (chosen := int(logits.argmax())) not in eos_ids:
        found.append(chosen)
        if len(found) < task.new_tokens:
            logits = decoder.feed([chosen])[-1]
    return tuple(found)


def find_openvino() -> OwnEngine:
    """OpenVINO; raises `DeviceError` if it is not installed."""
    import_openvino()
    return OwnEngine("openvino")
