"""Opens OpenVINO, and is the only file that imports it: a second engine for the packages of target `ort`, on the CPU.

It multiplies prompts faster than ONNX Runtime, and with `openvino:bf16` faster again where the processor multiplies in bfloat16.
The graph is read as it is, but for what `openvino_operators` puts in its place. Nothing is written to disk and nothing is
reported to its makers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DeviceError, ModelError, PackageError, first_line
from ..files.graph_file import refuse_functions
from ..options.checks import whole_number
from ..requirements import wrong_version
from .openvino_operators import BLOCK_BEGINS, BLOCK_INDICES, DOMAIN, Operators
from .protocol import Device
from .signature import PAST, ROLES, CacheTensor, Hints, Input, Values, present_of, read_inputs, read_rotary_switch

PRECISIONS = {"openvino": "f32", "openvino:bf16": "bf16"}
"""Names of the devices, and in what OpenVINO multiplies and attends there."""
ARRAYS: dict[str, type[np.generic]] = {"f32": np.float32, "bf16": np.uint16}
"""How keys and values of a precision lie in arrays: NumPy has no bfloat16, so its bits stand for it."""
TYPES = {
    "f32": "tensor(float)",
    "f16": "tensor(float16)",
    "f64": "tensor(double)",
    "i64": "tensor(int64)",
    "i32": "tensor(int32)",
    "boolean": "tensor(bool)",
}
"""OpenVINO's names of types, and ONNX Runtime's."""
ROTARY_SWITCH = ["framework", "rotary_switch"]
"""Where OpenVINO keeps what the graph says of itself."""
TELEMETRY = "openvino_telemetry"
INSTALL = 'install it with: pip install "onnx-textgen[openvino]"'
OTHERWISE = "take the device cpu for this model"


@dataclasses.dataclass(frozen=True, slots=True)
class OpenVINOSession:
    """See `graph.Graph`."""

    openvino: Any
    """The library."""
    compiled: Any
    device: Device
    inputs: Values
    outputs: Values
    cache_tensors: tuple[CacheTensor, ...]
    block_size: int
    """Tokens in a block of the cache."""
    rotary_switch: int | None
    """See `Graph.rotary_switch`."""
    threads: int | None
    """See `Graph.threads`."""
    hints: Hints = dataclasses.field(default_factory=Hints)

    @property
    def best_part(self) -> int:
        """See `Graph.best_part`: 256 are a seventh slower in bfloat16, 1,024 no faster."""
        return 512

    @property
    def roles(self) -> dict[str, Input]:
        """See `Graph.roles`."""
        return read_inputs(self.inputs, self.hints, self.cache_tensors)

    def name_of(self, output: str) -> str:
        """See `Graph.name_of`: a package of ours calls it so."""
        return output

    def make_requests(self) -> Requests:
        """What runs the graph, with a cache of its own."""
        return Requests(self)


class Requests:
    """Runs the graph over one cache."""

    def __init__(self, session: OpenVINOSession) -> None:
        self.session, self.request = session, session.compiled.create_infer_request()

    def share(self, name: str, array: npt.NDArray[Any]) -> None:
        """Let the graph keep keys or values in an array, from now on."""
        openvino, precision = self.session.openvino, PRECISIONS[self.session.device.kind]
        self.request.set_tensor(name, openvino.Tensor(array, openvino.Shape(array.shape), getattr(openvino.Type, precision)))

    def begin(self) -> OpenVINORun:
        """The next run."""
        return OpenVINORun(self.session.openvino, self.request)


class OpenVINORun:
    """See `graph.Run`."""

    def __init__(self, openvino: Any, request: Any) -> None:  # noqa: ANN401 - OpenVINO's own
        self.openvino, self.request, self.stopped = openvino, request, False

    def set_input(self, name: str, array: npt.NDArray[Any]) -> None:
        """See `Run.give`."""
        self.request.set_tensor(name, self.openvino.Tensor(array))

    def compute(
        self, output: str, shape: Sequence[int], beside: Sequence[str] = ()
    ) -> tuple[npt.NDArray[Any], list[npt.NDArray[Any]]]:
        """See `Run.compute`."""
        try:
            self.request.start_async()
            if self.stopped:  # too early to reach the request
                self.request.cancel()
            self.request.wait()
        except RuntimeError as error:
            raise ModelError(f"the model failed while it ran: {reason_of(error)}") from error
        found, *others = (np.array(self.request.get_tensor(name).data) for name in (output, *beside))
        return found.reshape(shape), others

    def stop(self) -> None:
        """See `Run.stop`; OpenVINO looks between operators."""
        self.stopped = True
        self.request.cancel()


def reason_of(error: BaseException) -> str:
    """What an exception of OpenVINO says: the last line, as those before tell where in its sources it arose."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return first_line(type(error)(lines[-1].lstrip("- ")) if lines else error)


def import_openvino() -> Any:  # noqa: ANN401 - the library
    """OpenVINO, and those parts of it that are not in its front; raises `DeviceError` where it is not installed."""
    try:
        with without_telemetry():
            for part in ("opset15", "op", "frontend.onnx"):
                importlib.import_module(f"openvino.{part}")
            openvino = importlib.import_module("openvino")
            _ = openvino.op._PagedAttentionExtension, openvino.opset15, openvino.frontend.onnx.ConversionExtension
            return openvino
    except (ImportError, AttributeError) as error:
        if (reason := wrong_version(error)) is not None:
            raise DeviceError(reason) from error
        raise DeviceError(f"OpenVINO cannot be imported: {first_line(error)}; {INSTALL}") from error


@contextlib.contextmanager
def without_telemetry() -> Iterator[None]:
    """Within it, OpenVINO finds no module to report with and takes its own stub: it would send its makers a note of each import."""
    loaded = sys.modules.get(TELEMETRY)
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # importing it fails as if it were not installed
    try:
        yield
    finally:
        del sys.modules[TELEMETRY]
        if loaded is not None:
            sys.modules[TELEMETRY] = loaded


def open_openvino(path: Path, *, device: str, threads: int | None = None) -> OpenVINOSession:
    """Open the graph at `path`; `device` is one of `PRECISIONS`, `threads=None` leaves the number to OpenVINO (one per core).

    Raises `DeviceError` where OpenVINO or the processor cannot, `PackageError` for a graph that it cannot run.
    """
    if threads is not None:
        threads = whole_number("threads", threads, 1, 1024)
    refuse_functions(path)
    openvino, precision = import_openvino(), PRECISIONS[device]
    core = compiling_core(openvino)
    if precision == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise DeviceError("this processor does not multiply in bfloat16; take the device openvino")
    operators = Operators(openvino.opset15, openvino.op._PagedAttentionExtension)
    extension = openvino.frontend.onnx.ConversionExtension
    reader = openvino.Core()  # of this graph alone: what an extension finds wrong is about it
    reader.add_extension(extension("GroupQueryAttention", DOMAIN, operators.attention))
    reader.add_extension(extension("GatherBlockQuantized", DOMAIN, operators.embedding))
    wanted = {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision, "PERFORMANCE_HINT": "LATENCY"}
    if threads is not None:
        wanted["INFERENCE_NUM_THREADS"] = str(threads)
    try:
        model = reader.read_model(path)
        cached = prepare(openvino, model)
        compiled = core.compile_model(model, "CPU", wanted)
    except RuntimeError as error:
        why = operators.refused[0] if operators.refused else reason_of(error)
        raise PackageError(f"OpenVINO cannot run {path.name}: {why}; {OTHERWISE}") from error
    inputs, outputs = read_values(compiled.inputs), read_values(compiled.outputs)
    tensors = tuple(
        CacheTensor(name, present_of(name), (None, heads, None, size), 2, "paged", np.dtype(ARRAYS[precision]))
        for name in cached
        for heads, size in [(whole_size(inputs[name][0][1]), whole_size(inputs[name][0][3]))]
    )
    block_size = whole_size(inputs[cached[0]][0][2])
    inputs = {name: value for name, value in inputs.items() if name not in (BLOCK_INDICES, BLOCK_BEGINS)}
    switch = model.get_rt_info(ROTARY_SWITCH).astype(str) if model.has_rt_info(ROTARY_SWITCH) else ""
    return OpenVINOSession(
        openvino, compiled, Device(device), inputs, outputs, tensors, block_size, read_rotary_switch(switch), threads
    )


@functools.cache
def compiling_core(openvino: Any) -> Any:  # noqa: ANN401 - the library, and its own
    """The one core of this process that compiles; it stays, since OpenVINO (2026.4.1) is not safe to signals when cores go.

    With the first use of a CPU each core gives the thread a stack for signals, and takes it away when it goes. Of two cores, the
    second then leaves the thread the first one's, which is memory no longer: the next Ctrl-C ends the process by SIGSEGV.
    """
    return openvino.Core()


def whole_size(size: int | str) -> int:
    """A size that PagedAttention has fixed."""
    assert isinstance(size, int), "OpenVINO knows the sizes of a block"
    return size


def read_values(ports: Any) -> Values:  # noqa: ANN401 - a list of OpenVINO's
    """Shape and type of inputs or outputs by name, in ONNX Runtime's words; an open size is a question mark."""
    return {
        port.any_name: (
            [size.get_length() if size.is_static else "?" for size in port.partial_shape],
            TYPES.get(port.element_type.to_string(), port.element_type.to_string()),
        )
        for port in ports
    }


def prepare(openvino: Any, model: Any) -> list[str]:  # noqa: ANN401 - OpenVINO's own
    """Give a model the inputs that stand-ins and defaults stand for, and no presents; returns the cache's names.

    Raises `PackageError` for a cache that is not, or not only, that of GroupQueryAttention.
    """
    attentions = [op for op in model.get_ops() if op.get_type_name() == "PagedAttentionExtension"]
    cached = [attention.input_value(index).any_name for attention in attentions for index in (3, 4)]
    others = [name for port in model.inputs for name in port.names if name.startswith(PAST) and name not in cached]
    if not cached or others:
        what = f"it carries {others[0]} too" if cached else "it has no GroupQueryAttention"
        raise PackageError(f"OpenVINO runs graphs of target ort whose cache is keys and values alone, and {what}; {OTHERWISE}")
    for op in model.get_ops():
        name = op.get_friendly_name()
        if op.get_type_name() == "Constant" and (name in (BLOCK_INDICES, BLOCK_BEGINS) or name in ROLES):
            parameter = openvino.opset15.parameter(openvino.PartialShape([-1]), op.get_element_type(), name=name)
            parameter.output(0).set_names({name})
            op.output(0).replace(parameter.output(0))
            model.add_parameters([parameter])
    for result in model.get_results():
        if result.input_value(0).any_name in {present_of(name) for name in cached}:
            model.remove_result(result)
    model.validate_nodes_and_infer_types()
    return cached
