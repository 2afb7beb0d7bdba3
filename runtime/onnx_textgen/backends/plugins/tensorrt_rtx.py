"""TensorRT for RTX: NVIDIA's GPUs from the RTX 30 series on. CUDA itself is no plug-in: see `onnxruntime_session`."""

from __future__ import annotations

from .plugin import Plugin

TENSORRT_RTX = Plugin(
    device="tensorrt-rtx",
    distribution="onnxruntime-ep-nv-tensorrt-rtx",
    module="onnxruntime_ep_nv_tensorrt_rtx",
    provider="NvTensorRTRTXExecutionProvider",
    needs="an NVIDIA GPU of the RTX 30 series or newer, with a driver for CUDA 13",
    state="was not tried with packages of this project",
)
