"""Opens and runs graphs with OpenVINO, a second CPU engine for packages of target `ort`; no other module imports it.

Its prefill is faster than ONNX Runtime's, and faster again with `openvino:bf16` on processors that multiply in bfloat16. The graph
is read without conversion, except for the operators that `operators` replaces. OpenVINO writes nothing to disk here and
sends no telemetry.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DeviceError, ModelError, PackageError, first_line
from ...extras import remedy
from ...files.graph_file import refuse_functions
from ...machine_limits import threads_within_limits
from ...options.checks import whole_number
from ...requirements import wrong_version
from ..cache_codes import NO_SCALES, CacheScales
from ..protocol import Device
from ..signature import (
    PAST,
    ROLES,
    CacheTensor,
    Hints,
    Input,
    Values,
    present_of,
    read_encoder_inputs,
    read_inputs,
    read_rotary_switch,
)
from .known import is_known
from .operators import BLOCK_BEGINS, BLOCK_INDICES, DOMAIN, Operators

PRECISIONS = {"openvino": "f32", "openvino:bf16": "bf16"}
"""Device names, with the precision of products and attention on each."""
ARRAY_TYPES: dict[str, type[np.generic]] = {"f32": np.float32, "bf16": np.uint16}
"""NumPy's type for keys and values of each precision: NumPy has no bfloat16, so its bits are kept as integers."""
ORT_TYPES = {
    "f32": "tensor(float)",
    "f16": "tensor(float16)",
    "f64": "tensor(double)",
    "i64": "tensor(int64)",
    "i32": "tensor(int32)",
    "boolean": "tensor(bool)",
}
"""ONNX Runtime's names of OpenVINO's types."""
ROTARY_SWITCH = ["framework", "rotary_switch"]
"""The path in OpenVINO's runtime info to the graph's metadata entry `rotary_switch`."""
TELEMETRY = "openvino_telemetry"
USE_CPU = "use the device cpu for this model"


@dataclasses.dataclass(frozen=True, slots=True)
class OpenVINOSession:
    """A graph that is compiled by OpenVINO; implements `protocol.Graph`."""

    openvino: Any
    """The library's module."""
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
    adapters: tuple[str, ...] = ()
    """See `Graph.adapters`: they are not added to OpenVINO's graphs."""

    @property
    def part_size(self) -> int:
        """See `Graph.part_size`: 256 is 14 % slower in bfloat16, 1,024 is no faster."""
        return 512

    @property
    def short_part_size(self) -> int:
        """See `Graph.short_part_size`."""
        return 64

    @property
    def most_tokens(self) -> int | None:
        """See `Graph.most_tokens`."""
        return None

    @property
    def joins_rows(self) -> bool:
        """See `Graph.joins_rows`."""
        return True

    @property
    def roles(self) -> dict[str, Input]:
        """See `Graph.roles`."""
        return read_inputs(self.inputs, self.hints, self.cache_tensors)

    @property
    def encoder_inputs(self) -> dict[str, Input]:
        """See `Graph.encoder_inputs`."""
        return read_encoder_inputs(self.inputs)

    def name_of(self, output: str) -> str:
        """See `Graph.name_of`: packages of this project use the roles' names."""
        return output

    def new_infer_request(self) -> InferRequest:
        """Make an infer request, for one cache."""
        return InferRequest(self)


class InferRequest:
    """OpenVINO's infer request: runs the graph over one cache."""

    def __init__(self, session: OpenVINOSession) -> None:
        self.session, self.request = session, session.compiled.create_infer_request()

    def bind_cache(self, name: str, array: npt.NDArray[Any]) -> None:
        """From now on, keep the keys or values of the input `name` in this array, which the graph updates in place."""
        openvino, precision = self.session.openvino, PRECISIONS[self.session.device.kind]
        self.request.set_tensor(name, openvino.Tensor(array, openvino.Shape(array.shape), getattr(openvino.Type, precision)))

    def new_run(self) -> OpenVINORun:
        """Make the next run."""
        return OpenVINORun(self.session.openvino, self.request)


class OpenVINORun:
    """See `protocol.Run`."""

    def __init__(self, openvino: Any, request: Any) -> None:  # noqa: ANN401 - OpenVINO's types
        self.openvino, self.request, self.stopped = openvino, request, False

    def set_input(self, name: str, array: npt.NDArray[Any]) -> None:
        """See `Run.set_input`."""
        self.request.set_tensor(name, self.openvino.Tensor(array))

    def compute(
        self, output: str, shape: Sequence[int], extra_outputs: Sequence[str] = ()
    ) -> tuple[npt.NDArray[Any], list[npt.NDArray[Any]]]:
        """See `Run.compute`."""
        try:
            self.request.start_async()
            if self.stopped:  # `stop` came before the request had started
                self.request.cancel()
            self.request.wait()
        except RuntimeError as error:
            raise ModelError(f"the model failed while it ran: {reason_of(error)}") from error
        found, *extra = (np.array(self.request.get_tensor(name).data) for name in (output, *extra_outputs))
        return found.reshape(shape), extra

    def stop(self) -> None:
        """See `Run.stop`; OpenVINO checks the flag between operators."""
        self.stopped = True
        self.request.cancel()


def reason_of(error: BaseException) -> str:
    """The reason in an exception of OpenVINO: its last line, as the lines before name places in OpenVINO's source."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return first_line(type(error)(lines[-1].lstrip("- ")) if lines else error)


def import_openvino() -> Any:  # noqa: ANN401 - the library
    """Import OpenVINO and the submodules that it does not import itself; raises `DeviceError` if that fails."""
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
        raise DeviceError(f"OpenVINO cannot be imported: {first_line(error)}; {remedy('openvino')}") from error


@contextlib.contextmanager
def without_telemetry() -> Iterator[None]:
    """Make the import of OpenVINO's telemetry module fail in the body: OpenVINO then uses a stub and does not report the import."""
    loaded = sys.modules.get(TELEMETRY)
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # an import of it now fails as if it were not installed
    try:
        yield
    finally:
        del sys.modules[TELEMETRY]
        if loaded is not None:
            sys.modules[TELEMETRY] = loaded


def open_openvino(
    path: Path, *, device: str, threads: int | None = None, is_exact: bool = False, scales: CacheScales = NO_SCALES
) -> OpenVINOSession:
    """Open the graph at `path` on a device of `PRECISIONS`; if `threads` is None, one per core, within the limits of this process.

    `is_exact`: whether the inputs of quantised products stay unrounded, as the package asks; OpenVINO does not read that from the
    graph, and by default it rounds them to 8 bits on processors with fast 8-bit products (VNNI, AMX). `scales`: see `Operators`.

    Raises `OptionError` for a wrong number of threads, and as `read_graph` does.
    """
    precision = PRECISIONS[device]
    properties = {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision, "PERFORMANCE_HINT": "LATENCY"}
    threads = threads_within_limits() if threads is None else whole_number("threads", threads, 1, 1024)
    if threads is not None:
        properties["INFERENCE_NUM_THREADS"] = str(threads)
    if is_exact:
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "0"
    openvino, model, pasts = read_graph(path, device=device, scales=scales)
    try:
        # ONNX Runtime's steps take 8 % longer in the thread that has compiled, as long as the graph is open (OpenVINO 2026.4.1).
        with ThreadPoolExecutor(1) as pool:
            compiled = pool.submit(compiling_core(openvino).compile_model, model, "CPU", properties).result()
    except RuntimeError as error:
        raise PackageError(f"OpenVINO cannot run {path.name}: {reason_of(error)}; {USE_CPU}") from error
    inputs, outputs = read_values(compiled.inputs), read_values(compiled.outputs)
    tensors = tuple(
        CacheTensor(name, present_of(name), (None, heads, None, size), 2, "paged", np.dtype(ARRAY_TYPES[precision]))
        for name in pasts
        for heads, size in [(static_size(inputs[name][0][1]), static_size(inputs[name][0][3]))]
    )
    block_size = static_size(inputs[pasts[0]][0][2])
    inputs = {name: value for name, value in inputs.items() if name not in (BLOCK_INDICES, BLOCK_BEGINS)}
    switch = model.get_rt_info(ROTARY_SWITCH).astype(str) if model.has_rt_info(ROTARY_SWITCH) else ""
    return OpenVINOSession(
        openvino, compiled, Device(device), inputs, outputs, tensors, block_size, read_rotary_switch(switch), threads
    )


def check_readable(path: Path, *, device: str, scales: CacheScales = NO_SCALES) -> None:
    """Raise what `read_graph` raises for a graph; where OpenVINO is known to read it, without importing OpenVINO."""
    refuse_functions(path)
    is_installed = importlib.util.find_spec("openvino") is not None
    if not (is_installed and PRECISIONS[device] == "f32" and is_known(path)):
        read_graph(path, device=device, scales=scales)


def read_graph(path: Path, *, device: str, scales: CacheScales = NO_SCALES) -> tuple[Any, Any, list[str]]:
    """Read the graph at `path` for a device: returns OpenVINO's module, its model, and the names of the past inputs.

    That takes little time, unlike compiling it. Raises `DeviceError` if OpenVINO is not installed or the processor lacks bfloat16,
    and `PackageError` if OpenVINO cannot run the graph.
    """
    refuse_functions(path)
    openvino = import_openvino()
    if PRECISIONS[device] == "bf16" and "BF16" not in compiling_core(openvino).get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise DeviceError("this processor does not multiply in bfloat16; name the device without :bf16")
    operators = Operators(openvino.opset15, openvino.op._PagedAttentionExtension, scales)
    extension = openvino.frontend.onnx.ConversionExtension
    reader = openvino.Core()  # a core per graph, so that `operators.refused` is about this graph only
    reader.add_extension(extension("GroupQueryAttention", DOMAIN, operators.attention))
    reader.add_extension(extension("GatherBlockQuantized", DOMAIN, operators.embedding))
    try:
        model = reader.read_model(path)
        return openvino, model, prepare(openvino, model)
    except RuntimeError as error:
        why = operators.refused[0] if operators.refused else reason_of(error)
        raise PackageError(f"OpenVINO cannot run {path.name}: {why}; {USE_CPU}") from error


@functools.cache
def compiling_core(openvino: Any) -> Any:  # noqa: ANN401 - OpenVINO's types
    """The only core of this process that compiles models; never freed, since freeing cores breaks signals (OpenVINO 2026.4.1).

    At its first use of the CPU, each core installs a signal stack for the thread, and removes it when the core is freed. After two
    cores, the second one leaves the thread with the stack of the first, which is freed memory: the next Ctrl-C ends the process by
    SIGSEGV.
    """
    return openvino.Core()


def static_size(size: int | str) -> int:
    """A size that PagedAttention has made static."""
    assert isinstance(size, int), "OpenVINO knows the sizes of a block"
    return size


def read_values(ports: Any) -> Values:  # noqa: ANN401 - OpenVINO's types
    """Shape and type of inputs or outputs by name, with ONNX Runtime's names of types; a dynamic size is a question mark.

    A value has several names if OpenVINO has removed an operator that changed nothing.
    """
    return {
        name: (
            [size.get_length() if size.is_static else "?" for size in port.partial_shape],
            ORT_TYPES.get(port.element_type.to_string(), port.element_type.to_string()),
        )
        for port in ports
        for name in port.names
    }


def prepare(openvino: Any, model: Any) -> list[str]:  # noqa: ANN401 - OpenVINO's types
    """Replace placeholders and roles' defaults by inputs, and remove the presents; returns the names of the past inputs.

    Raises `PackageError` if the cache is not GroupQueryAttention's alone.
    """
    attentions = [op for op in model.get_ops() if op.get_type_name() == "PagedAttentionExtension"]
    pasts = [attention.input_value(index).any_name for attention in attentions for index in (3, 4)]
    others = [name for port in model.inputs for name in port.names if name.startswith(PAST) and name not in pasts]
    if not pasts or others:
        what = f"this graph carries {others[0]} too" if pasts else "this graph has no GroupQueryAttention"
        raise PackageError(f"OpenVINO runs only graphs of target ort with a cache of keys and values, and {what}; {USE_CPU}")
    for op in model.get_ops():
        name = op.get_friendly_name()
        if op.get_type_name() == "Constant" and (name in (BLOCK_INDICES, BLOCK_BEGINS) or name in ROLES):
            parameter = openvino.opset15.parameter(openvino.PartialShape([-1]), op.get_element_type(), name=name)
            parameter.output(0).set_names({name})
            op.output(0).replace(parameter.output(0))
            model.add_parameters([parameter])
    for result in model.get_results():
        if result.input_value(0).any_name in {present_of(name) for name in pasts}:
            model.remove_result(result)
    model.validate_nodes_and_infer_types()
    return pasts
