"""Runs a graph that is open in ONNX Runtime, on a binding to which a cache has bound its memory."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from .signature import ELEMENT_TYPES

if TYPE_CHECKING:
    from .onnxruntime_session import OnnxRuntimeSession


def new_run_options() -> onnxruntime.RunOptions:
    """Options that exclude CUDA graphs; without this entry, ONNX Runtime's Python wrapper catches an exception in every run."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "-1")
    return options


class ReusableBuffer:
    """Memory of one array that is reused as soon as no caller holds the array that was lent, or a view of it.

    A weak reference shows this reliably in every Python. A reference count (`sys.getrefcount`) does not: free-threaded builds keep
    no exact count, and Python 3.14 borrows references without counting them.
    """

    def __init__(self, shape: Sequence[int], dtype: npt.DTypeLike) -> None:
        self.array = np.empty(shape, dtype)
        self.lent: weakref.ref[npt.NDArray[Any]] | None = None

    @property
    def is_free(self) -> bool:
        """Whether no caller holds the array that was lent, or a view of it."""
        return self.lent is None or self.lent() is None

    def lend(self) -> npt.NDArray[Any]:
        """Return a new array over the memory.

        NumPy makes the owner of the memory the base of every view, also of a view of a view. An array over a memoryview counts as
        an owner, so every view of the returned array keeps that array alive.
        """
        lent = np.asarray(self.array.data)
        self.lent = weakref.ref(lent)
        return lent


class BoundRun:
    """See `protocol.Run`: runs on a binding to which a cache has bound its memory."""

    def __init__(self, session: OnnxRuntimeSession, binding: onnxruntime.IOBinding) -> None:
        self.session, self.binding = session, binding
        self.options = new_run_options()
        self.bound: dict[str, npt.NDArray[Any]] = {}
        """The memory of each input; an input whose shape stays the same is bound once."""
        self.buffer = ReusableBuffer((0,), np.float32)
        """The memory of the last run's output."""

    def reset(self) -> BoundRun:
        """Clear a stop of the last run before the next one begins; returns the run itself.

        The end of the last run would be too early: `stop` may set the flag a moment later, and it stays set.
        """
        if self.options.terminate:
            self.options = new_run_options()
        return self

    def set_input(self, name: str, array: npt.NDArray[Any]) -> None:
        """See `Run.set_input`.

        For another device than the CPU, ONNX Runtime copies an input when it is bound: what is written later, a run would not see.
        """
        bound, is_copied = self.bound.get(name), self.session.device.kind != "cpu"
        if bound is array:
            return
        if bound is not None and bound.shape == array.shape and bound.flags.writeable and not is_copied:
            bound[...] = array
        else:
            self.bound[name] = bound = array.copy() if array.flags.writeable else array
            self.binding.bind_input(name, "cpu", 0, bound.dtype.type, bound.shape, bound.ctypes.data)

    def compute(
        self, output: str, shape: Sequence[int], extra_outputs: Sequence[str] = ()
    ) -> tuple[npt.NDArray[Any], list[npt.NDArray[Any]]]:
        """See `Run.compute`."""
        for name in extra_outputs:
            self.binding.bind_output(name, "cpu")
        if self.buffer.array.shape != tuple(shape) or not self.buffer.is_free:
            self.buffer = ReusableBuffer(shape, ELEMENT_TYPES[self.session.outputs[output][1]])
            array = self.buffer.array
            self.binding.bind_output(output, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        self.session.ort.run_with_iobinding(self.binding, self.options)
        # Only if needed: `get_outputs` wraps the whole cache in objects, which takes half a millisecond.
        extra = self.binding.get_outputs()[-len(extra_outputs) - 1 : -1] if extra_outputs else []  # in the order of binding
        return self.buffer.lend(), [each.numpy() for each in extra]

    def stop(self) -> None:
        """See `Run.stop`; ONNX Runtime checks the flag between operators."""
        self.options.terminate = True
