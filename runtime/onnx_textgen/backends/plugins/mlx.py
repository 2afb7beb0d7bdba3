"""MLX: the GPU of Apple's processors."""

from __future__ import annotations

from .plugin import Plugin

MLX = Plugin(
    device="mlx",
    distribution="onnxruntime-ep-mlx",
    module="onnxruntime_ep_mlx",
    provider="MLXExecutionProvider",
    needs="macOS 14 or newer on an Apple processor",
    state="was not tried with packages of this project",
    library="library_path",
)
