"""The devices that plug-ins add, by the names that callers give."""

from __future__ import annotations

from .mlx import MLX
from .qnn import QNN
from .tensorrt_rtx import TENSORRT_RTX
from .webgpu import WEBGPU

PLUGINS = {plugin.device: plugin for plugin in (WEBGPU, TENSORRT_RTX, MLX, QNN)}
