"""QNN: the neural processors and GPUs of Qualcomm's Snapdragon."""

from __future__ import annotations

from .plugin import Plugin

QNN = Plugin(
    device="qnn",
    distribution="onnxruntime-qnn",
    module="onnxruntime_qnn",
    provider="QNNExecutionProvider",
    needs="a Snapdragon processor",
    state="was not tried with packages of this project",
)
