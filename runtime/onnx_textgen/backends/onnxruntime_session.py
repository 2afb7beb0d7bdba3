"""Opens ONNX Runtime: the only file of the runtime that imports it. OpenVINO has a file of its own.

Nothing falls back from CUDA to CPU silently, and the wrapper's own fallback, which prints to stdout, is disabled. Telemetry is
off already: the package sees to that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import logging
import re
import weakref
from collections.abc import Sequence
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
LOG = logging.getLogger("onnx_textgen")
CUDA_PROVIDER = "CUDAExecutionProvider"
CPU_PROVIDER = "CPUExecutionProvider"
VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
INT8_CACHE_NEEDS = (1, 31)
"""The first version that a cache of 8 bits was tried with; 1.27 had several rows of one wrong (microsoft/onnxruntime#28963)."""
UNUSED_OPTIMIZERS = ["NchwcTransformer"]
"""It lays out images for convolutions, and crashes on some float16 graphs (ONNX Runtime 1.31.1)."""
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
"""Where ONNX Runtime finds the weights of a graph that it is given as bytes."""
SPIN_MICROSECONDS = 800
"""Twice what the loop takes between two runs: waking threads that went to sleep costs up to a twentieth of a step. Without a limit
(some milliseconds) a model that runs in turn with another one takes twice as long, as the other's threads are still at it; with
this one it takes a tenth more. `benchmarks/spinning.py` measures both."""
INSTALL_CUDA = (
    'install it with: pip install "onnxruntime-gpu[cuda,cudnn]" && pip install --force-reinstall --no-deps onnxruntime-gpu; '
    "if that does not help, look at: onnx-textgen doctor"
)


NO_HINTS = Hints()


@dataclasses.dataclass(frozen=True)
class Session:
    """An open graph: what it takes, what it gives, and where it runs."""

    ort: onnxruntime.InferenceSession
    device: Device
    inputs: Values
    """Those with a default included."""
    outputs: Values
    hints: Hints = NO_HINTS
    path: Path | None = None
    """The file it was read from."""

    @property
    def threads(self) -> int | None:
        """See `Graph.threads`."""
        return self.ort.get_session_options().intra_op_num_threads or None

    @property
    def best_part(self) -> int:
        """See `Graph.best_part`: 256 are a fiftieth slower at 4 and 8 bits and faster by as much in float32; 512 a tenth slower."""
        return 128

    @functools.cached_property
    def cache_tensors(self) -> tuple[CacheTensor, ...]:
        """All that the graph carries from run to run, in the order of its inputs; raises `PackageError` where it is not whole."""
        return read_cache(self.inputs, self.outputs, self.hints)

    @functools.cached_property
    def roles(self) -> dict[str, Input]:
        """What the graph takes beside its cache, by role; raises `PackageError` for what no decoder here can give."""
        has_default = {node.name for node in self.ort.get_overridable_initializers()}
        return read_inputs(self.inputs, self.hints, self.cache_tensors, has_default)

    def name_of(self, output: str) -> str:
        """The graph's name of the logits or of the hidden states, whether it has them or not."""
        return self.hints.names.get(output, output)

    @property
    def rotary_switch(self) -> int | None:
        """The length beyond which the graph turns keys by other frequencies, so that a text which crosses it is fed anew."""
        return read_rotary_switch(self.ort.get_modelmeta().custom_metadata_map.get("rotary_switch", ""))

    @property
    def shares_cache(self) -> bool:
        """Whether the graph updates keys and values in place: past and present have a length of the same name."""
        return any(tensor.kind == "shared" for tensor in self.cache_tensors)

    @property
    def suits_cuda(self) -> bool:
        """Whether ONNX Runtime has CUDA kernels for the graph's attention: for GroupQueryAttention only in 16 bits."""
        return all(tensor.dtype.itemsize == 2 for tensor in self.cache_tensors if tensor.kind == "shared")


def new_run_options() -> onnxruntime.RunOptions:
    """Options that name no CUDA graph: where that is left open, the wrapper catches an exception in every run."""
    options = RunOptions()
    options.add_run_config_entry("gpu_graph_id", "-1")
    return options


class LentMemory:
    """Memory of one array, lent as an array that keeps its borrower known: whether it is held, by any view, is never guessed.

    A count of references (`sys.getrefcount`) would not tell: free-threaded builds of Python do not keep one that is true at any
    moment, and 3.14 borrows references without counting them. A weak reference is true in every Python.
    """

    def __init__(self, shape: Sequence[int], dtype: npt.DTypeLike) -> None:
        self.array = np.empty(shape, dtype)
        self.lent: weakref.ref[npt.NDArray[Any]] | None = None

    @property
    def is_free(self) -> bool:
        """Whether nobody holds what was lent, nor a view of it."""
        return self.lent is None or self.lent() is None

    def lend(self) -> npt.NDArray[Any]:
        """The memory as an array of its own.

        NumPy hangs a view of a view on the array that has the memory, past those in between. It does not look behind an array
        over a memoryview, so every view of what is lent holds that one.
        """
        lent = np.asarray(self.array.data)
        self.lent = weakref.ref(lent)
        return lent


class BoundRun:
    """See `graph.Run`: a run on a binding that has the cache in place."""

    def __init__(self, session: Session, binding: onnxruntime.IOBinding) -> None:
        self.session, self.binding = session, binding
        self.options = new_run_options()
        self.given: dict[str, npt.NDArray[Any]] = {}
        """The memory that inputs are read from; one whose shape stays is bound once."""
        self.memory = LentMemory((0,), np.float32)
        """Where the last run's output was written."""

    def ready(self) -> BoundRun:
        """The same for another run, which what stopped the last one does not end.

        The end of a run would be too early to see to that: `stop` may come a moment later, and the flag of options stays.
        """
        if self.options.terminate:
            self.options = new_run_options()
        return self

    def set_input(self, name: str, array: npt.NDArray[Any]) -> None:
        """See `Run.give`."""
        held = self.given.get(name)
        if held is array:
            return
        if held is not None and held.shape == array.shape and held.flags.writeable:
            held[...] = array
        else:
            self.given[name] = held = array.copy() if array.flags.writeable else array
            self.binding.bind_input(name, "cpu", 0, held.dtype.type, held.shape, held.ctypes.data)

    def compute(
        self, output: str, shape: Sequence[int], beside: Sequence[str] = ()
    ) -> tuple[npt.NDArray[Any], list[npt.NDArray[Any]]]:
        """See `Run.compute`."""
        for name in beside:
            self.binding.bind_output(name, "cpu")
        if self.memory.array.shape != tuple(shape) or not self.memory.is_free:
            self.memory = LentMemory(shape, ELEMENT_TYPES[self.session.outputs[output][1]])
            array = self.memory.array
            self.binding.bind_output(output, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        self.session.ort.run_with_iobinding(self.binding, self.options)
        # Only where it must: a binding wraps the whole cache in objects when it is asked, for half a millisecond.
        others = self.binding.get_outputs()[-len(beside) - 1 : -1] if beside else []  # in the order bound
        return self.memory.lend(), [each.numpy() for each in others]

    def stop(self) -> None:
        """See `Run.stop`; ONNX Runtime looks at the flag between operators."""
        self.options.terminate = True


def has_cuda() -> bool:
    """Whether the installed ONNX Runtime was built with CUDA."""
    return CUDA_PROVIDER in onnxruntime.get_available_providers()


def parse_device(name: str) -> tuple[str, int]:
    """`auto`, `cpu`, `cuda` or `cuda:1` as (kind, index)."""
    if not isinstance(name, str) or not (found := re.fullmatch(r"(auto|cpu|cuda)|cuda:([0-9]{1,3})", name)):
        raise OptionError(f"device should be auto, cpu, cuda, cuda:N, openvino or openvino:bf16, found {name!r:.60}")
    return found[1] or "cuda", int(found[2] or 0)


def make_options(threads: int | None) -> onnxruntime.SessionOptions:
    """Session options; `threads=None` leaves the number to ONNX Runtime (one per physical core)."""
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 1024):
        raise OptionError(f"threads should be a whole number from 1 to 1024, found {threads!r}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised, not printed
    options.intra_op_num_threads = threads or 0
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_MICROSECONDS))
    options.inter_op_num_threads = 1
    return options


def open_beside(session: Session, model: bytes) -> Session:
    """Another graph of the same weights and cache, on the same device, with the same number of threads; raises `PackageError`."""
    assert session.path is not None, "the caller has looked"
    options = make_options(session.threads)
    options.add_session_config_entry(WEIGHTS_FOLDER, str(session.path.parent))
    return open_on(session.path, session.device, options, session.hints, model=model)


def open_on(
    path: Path, device: Device, options: onnxruntime.SessionOptions, hints: Hints = NO_HINTS, *, model: bytes | None = None
) -> Session:
    """A session on exactly that device; `model`: what is opened in the place of the file's content."""
    if model is None:
        refuse_functions(path)
    providers: list[Any] = [CPU_PROVIDER]
    try:
        if device.kind == "cuda":
            if hasattr(onnxruntime, "preload_dlls"):
                with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find
                    onnxruntime.preload_dlls()  # finds the CUDA libraries that pip installed
            providers.insert(0, (CUDA_PROVIDER, {"device_id": device.index}))
        ort = onnxruntime.InferenceSession(
            str(path) if model is None else model,
            options,
            providers=providers,
            disabled_optimizers=UNUSED_OPTIMIZERS,
            enable_fallback=0,
        )
    except Exception as error:
        if device.kind == "cuda":
            raise DeviceError(f"{device} was asked for and did not start: {first_line(error)}; {INSTALL_CUDA}") from error
        raise PackageError(f"ONNX Runtime cannot open {path.name}: {first_line(error)}; export or fetch the model again") from error
    if device.kind == "cuda" and ort.get_providers()[0] != CUDA_PROVIDER:
        raise DeviceError(f"{device} was asked for and did not start (a driver or library is missing); {INSTALL_CUDA}")
    inputs = {node.name: (node.shape, node.type) for node in (*ort.get_inputs(), *ort.get_overridable_initializers())}
    session = Session(ort, device, inputs, {node.name: (node.shape, node.type) for node in ort.get_outputs()}, hints, path)
    if VERSION < INT8_CACHE_NEEDS and any(element == "tensor(int8)" for _, element in inputs.values()):
        needed = ".".join(map(str, INT8_CACHE_NEEDS))
        raise PackageError(
            f"{path.name} keeps keys and values at 8 bits, for which onnxruntime {onnxruntime.__version__} is too old; "
            f"take {needed} or newer (pip install -U onnxruntime), or the folder's own graph"
        )
    return session


def open_session(path: Path, *, device: str = "auto", threads: int | None = None, hints: Hints = NO_HINTS) -> Session:
    """Open the graph at `path`; `auto` takes CUDA where it works and suits the graph, and else the CPU; the log says why.

    ONNX Runtime's list of kernels has GroupQueryAttention for CUDA in float16 and bfloat16 only. A graph with a shared float32
    cache would attend on the CPU and copy the cache to and fro, so `auto` leaves it there; `cuda` is obeyed, with a warning.
    This follows from the list and has not been measured on a GPU.
    """
    kind, index = parse_device(device)
    options = make_options(threads)
    if kind == "cuda" and not has_cuda():
        raise DeviceError(f"CUDA was asked for, but the installed onnxruntime has no CUDA provider; {INSTALL_CUDA}")
    if kind == "cuda" or (kind == "auto" and has_cuda()):
        try:
            session = open_on(path, Device("cuda", index), options, hints)
        except DeviceError as error:
            if kind == "cuda":
                raise
            LOG.info("taking the CPU: %s", error)
        else:
            if session.suits_cuda:
                return session
            if kind == "cuda":
                LOG.warning(
                    "%s has no float16 cache, so ONNX Runtime computes its attention on the CPU; device cpu may be faster", path
                )
                return session
            LOG.info("taking the CPU: ONNX Runtime has CUDA attention for float16 alone, which the cache of %s is not", path)
    return open_on(path, CPU, options, hints)
