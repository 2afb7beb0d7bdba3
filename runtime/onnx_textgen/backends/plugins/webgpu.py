"""WebGPU: GPUs of all makers, by Vulkan, Direct3D 12 or Metal."""

from __future__ import annotations

from .plugin import Plugin

WEBGPU = Plugin(
    device="webgpu",
    distribution="onnxruntime-ep-webgpu",
    module="onnxruntime_ep_webgpu",
    provider="WebGpuExecutionProvider",
    needs="a GPU, and on Linux the Vulkan loader, libvulkan.so.1, and a driver for it",
    state="runs packages of target ort; tried on a GPU that is simulated on the CPU",
)
