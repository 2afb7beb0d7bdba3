"""Opens and runs graphs with ONNX Runtime, which no other module of the runtime imports. `openvino_session` uses OpenVINO.

A request for CUDA never falls back to the CPU silently; ONNX Runtime's own fallback, which prints to stdout, is disabled. The
package disables telemetry before this import.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import logging
import re
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from ..errors import DeviceError, OptionError, PackageError, first_line
from ..files.graph_file import refuse_functions
from .protocol import CPU, Device
from .signature import ELEMENT_TYPES, CacheTensor, Hints, Input, Values, read_cache, read_inputs, read_rotary_switch

IOBinding, OrtValue, RunOptions = onnxruntime.IOBinding, onnxruntime.OrtValue, onnxruntime.RunOptions
AdapterFormat = onnxruntime.AdapterFormat
LOG = logging.getLogger("onnx_textgen")
CUDA_PROVIDER = "CUDAExecutionProvider"
CPU_PROVIDER = "CPUExecutionProvider"
VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
INT8_CACHE_MIN_VERSION = (1, 31)
"""The first version that was tested with an 8-bit cache; 1.27 computed batches wrongly (microsoft/onnxruntime#28963)."""
DISABLED_OPTIMIZERS = ["NchwcTransformer"]
"""It changes the layout of convolutions, which decoders do not have, and crashes on some float16 graphs (ONNX Runtime 1.31.1)."""
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
"""The session option that says where the weights of a graph lie that is opened from bytes."""
SPIN_MICROSECONDS = 800
"""How long idle threads spin: twice the loop's time between two runs, because waking a sleeping thread costs up to 5 % of a step.
With ONNX Runtime's default, a few milliseconds, a model that alternates with another one takes twice as long, because the other
model's threads still spin; with this limit it takes 10 % longer. `benchmarks/spinning.py` measures both."""
INSTALL_CUDA = (
    'install it with: pip install "onnxruntime-gpu[cuda,cudnn]" && pip install --force-reinstall --no-deps onnxruntime-gpu; '
    "if that does not help, run: onnx-textgen doctor"
)


NO_HINTS = Hints()


@dataclasses.dataclass(frozen=True)
class Session:
    """A graph that is open in ONNX Runtime; implements `protocol.Graph`."""

    ort: onnxruntime.InferenceSession
    device: Device
    inputs: Values
    """See `Graph.inputs`."""
    outputs: Values
    hints: Hints = NO_HINTS
    path: Path | None = None
    """The file of the graph."""
    adapters: tuple[str, ...] = ()
    """See `Graph.adapters`."""
    own_model: Callable[[], bytes] | None = None
    """Makes the content of a graph that is no file."""

    def model(self) -> bytes:
        """The content of the graph, without its weights."""
        assert self.path is not None, "the caller has checked"
        return self.path.read_bytes() if self.own_model is None else self.own_model()

    @property
    def threads(self) -> int | None:
        """See `Graph.threads`."""
        return self.ort.get_session_options().intra_op_num_threads or None

    @property
    def part_size(self) -> int:
        """See `Graph.part_size`: 256 is 2 % slower at 4 and 8 bits and 2 % faster in float32; 512 is 10 % slower."""
        return 128

    @functools.cached_property
    def cache_tensors(self) -> tuple[CacheTensor, ...]:
        """See `Graph.cache_tensors`; in the order of the graph's inputs. Raises `PackageError` if the cache is incomplete."""
        return read_cache(self.inputs, self.outputs, self.hints)

    @functools.cached_property
    def roles(self) -> dict[str, Input]:
        """See `Graph.roles`."""
        has_default = {node.name for node in self.ort.get_overridable_initializers()}
        return read_inputs(self.inputs, self.hints, self.cache_tensors, has_default)

    def name_of(self, output: str) -> str:
        """See `Graph.name_of`."""
        return self.hints.names.get(output, output)

    @property
    def rotary_switch(self) -> int | None:
        """See `Graph.rotary_switch`."""
        return read_rotary_switch(self.ort.get_modelmeta().custom_metadata_map.get("rotary_switch", ""))

    @property
    def shares_cache(self) -> bool:
        """Whether the graph updates keys and values in place."""
        return any(tensor.kind == "shared" for tensor in self.cache_tensors)

    @property
    def suits_cuda(self) -> bool:
        """Whether ONNX Runtime has CUDA kernels for the graph's attention: GroupQueryAttention has them only in 16 bits."""
        return all(tensor.dtype.itemsize == 2 for tensor in self.cache_tensors if tensor.kind == "shared")


def new_run_options() -> onnxruntime.RunOptions:
    """Options that exclude CUDA graphs; without this entry, ONNX Runtime's Python wrapper catches an exception in every run."""
    options = RunOptions()
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

    def __init__(self, session: Session, binding: onnxruntime.IOBinding) -> None:
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
        """See `Run.set_input`."""
        bound = self.bound.get(name)
        if bound is array:
            return
        if bound is not None and bound.shape == array.shape and bound.flags.writeable:
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


def has_cuda() -> bool:
    """Whether the installed ONNX Runtime was built with CUDA."""
    return CUDA_PROVIDER in onnxruntime.get_available_providers()


def parse_device(name: str) -> tuple[str, int]:
    """Parse `auto`, `cpu`, `cuda` or `cuda:1` to (kind, index); raises `OptionError`."""
    if not isinstance(name, str) or not (found := re.fullmatch(r"(auto|cpu|cuda)|cuda:([0-9]{1,3})", name)):
        raise OptionError(f"device should be auto, cpu, cuda, cuda:N, openvino or openvino:bf16, found {name!r:.60}")
    return found[1] or "cuda", int(found[2] or 0)


def make_options(threads: int | None) -> onnxruntime.SessionOptions:
    """Make session options; if `threads` is None, ONNX Runtime chooses (one per physical core). Raises `OptionError`."""
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 1024):
        raise OptionError(f"threads should be a whole number from 1 to 1024, found {threads!r}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # fatal messages only: errors are raised, not printed
    options.intra_op_num_threads = threads or 0
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_MICROSECONDS))
    options.inter_op_num_threads = 1
    return options


def open_variant(session: Session, model: bytes) -> Session:
    """Open another graph over the same weights, on the same device with the same options; raises `PackageError`."""
    assert session.path is not None, "the caller has checked"
    options = session.ort.get_session_options()
    try:
        options.get_session_config_entry(WEIGHTS_FOLDER)
    except RuntimeError:  # it was not set; to set it twice would print a warning
        options.add_session_config_entry(WEIGHTS_FOLDER, str(session.path.parent))
    return open_on(session.path, session.device, options, session.hints, model=model)


def open_on(
    path: Path, device: Device, options: onnxruntime.SessionOptions, hints: Hints = NO_HINTS, *, model: bytes | None = None
) -> Session:
    """Open the graph at `path` on exactly this device; `model`, if given, replaces the file's content.

    Raises `DeviceError` if CUDA does not start, and `PackageError` if ONNX Runtime cannot open the graph.
    """
    if model is None:
        refuse_functions(path)
    providers: list[Any] = [CPU_PROVIDER]
    try:
        if device.kind == "cuda":
            if hasattr(onnxruntime, "preload_dlls"):
                with contextlib.redirect_stdout(io.StringIO()):  # it prints the names of missing libraries
                    onnxruntime.preload_dlls()  # loads the CUDA libraries that pip installed
            providers.insert(0, (CUDA_PROVIDER, {"device_id": device.index}))
        ort = onnxruntime.InferenceSession(
            str(path) if model is None else model,
            options,
            providers=providers,
            disabled_optimizers=DISABLED_OPTIMIZERS,
            enable_fallback=0,
        )
        ins, outs = (*ort.get_inputs(), *ort.get_overridable_initializers()), ort.get_outputs()
        inputs, outputs = ({node.name: (node.shape, node.type) for node in nodes} for nodes in (ins, outs))
    except Exception as error:  # also a name that is no UTF-8
        if device.kind == "cuda":
            raise DeviceError(f"{device} was requested but did not start: {first_line(error)}; {INSTALL_CUDA}") from error
        raise PackageError(f"ONNX Runtime cannot open {path.name}: {first_line(error)}; export or fetch the model again") from error
    if device.kind == "cuda" and ort.get_providers()[0] != CUDA_PROVIDER:
        raise DeviceError(f"{device} was requested but did not start (a driver or library is missing); {INSTALL_CUDA}")
    session = Session(ort, device, inputs, outputs, hints, path)
    if VERSION < INT8_CACHE_MIN_VERSION and any(element == "tensor(int8)" for _, element in inputs.values()):
        needed = ".".join(map(str, INT8_CACHE_MIN_VERSION))
        raise PackageError(
            f"{path.name} keeps keys and values at 8 bits, for which onnxruntime {onnxruntime.__version__} is too old; "
            f"use {needed} or newer (pip install -U onnxruntime), or open the folder's main graph"
        )
    return session


def open_session(path: Path, *, device: str = "auto", threads: int | None = None, hints: Hints = NO_HINTS) -> Session:
    """Open the graph at `path`; `auto` chooses CUDA if it starts and suits the graph, else the CPU, and logs why.

    ONNX Runtime lists CUDA kernels of GroupQueryAttention for float16 and bfloat16 only. A graph with a shared float32 cache would
    compute attention on the CPU and copy the cache back and forth, so `auto` chooses the CPU for it; `cuda` opens it on CUDA, with
    a warning. This follows from the list of kernels and has not been measured on a GPU. Raises `OptionError` for a wrong device or
    number of threads, and the errors of `open_on`.
    """
    kind, index = parse_device(device)
    options = make_options(threads)
    if kind == "cuda" and not has_cuda():
        raise DeviceError(f"CUDA was requested, but the installed onnxruntime has no CUDA provider; {INSTALL_CUDA}")
    if kind == "cuda" or (kind == "auto" and has_cuda()):
        try:
            session = open_on(path, Device("cuda", index), options, hints)
        except DeviceError as error:
            if kind == "cuda":
                raise
            LOG.info("using the CPU: %s", error)
        else:
            if session.suits_cuda:
                return session
            if kind == "cuda":
                LOG.warning(
                    "%s has no float16 cache, so ONNX Runtime computes its attention on the CPU; device cpu may be faster", path
                )
                return session
            LOG.info("using the CPU: ONNX Runtime has CUDA attention only for a float16 cache, which %s does not have", path)
    return open_on(path, CPU, options, hints)
