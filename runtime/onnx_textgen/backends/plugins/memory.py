"""The memory of a plug-in's device: arrays are copied there and back. A device without its own memory uses the CPU's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime


class DeviceMemory:
    """Where a device keeps tensors between runs."""

    def __init__(self, device: Any) -> None:  # noqa: ANN401 - ONNX Runtime's type
        self.info = device.memory_info(onnxruntime.OrtDeviceMemoryType.DEFAULT)
        """None: the device has not its own memory."""

    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any]) -> onnxruntime.OrtValue:
        """A tensor of this shape and type; its content is not defined."""
        if self.info is None:
            return onnxruntime.OrtValue.ortvalue_from_numpy(np.empty(shape, dtype))
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), dtype.type, memory_info=self.info)

    def upload(self, array: npt.NDArray[Any]) -> onnxruntime.OrtValue:
        """A tensor with a copy of the array."""
        if self.info is None:
            return onnxruntime.OrtValue.ortvalue_from_numpy(np.array(array, order="C"))
        value = self.allocate(array.shape, array.dtype)
        if array.size:
            onnxruntime.copy_tensors([onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))], [value])
        return value

    def download(self, value: onnxruntime.OrtValue, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """A copy of a tensor of this type as an array."""
        if self.info is None:
            return np.array(value.numpy())
        array = np.empty(value.shape(), dtype)
        if array.size:
            onnxruntime.copy_tensors([value], [onnxruntime.OrtValue.ortvalue_from_numpy(array)])
        return array
