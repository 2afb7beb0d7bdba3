"""Opens graphs with ONNX Runtime, on the CPU, on CUDA or on a plug-in's device. `openvino/session.py` opens them with OpenVINO.

A request for a device never falls back to the CPU silently; ONNX Runtime's own fallback, which prints to stdout, is disabled. The
package disables telemetry before this import.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnxruntime

from ..errors import LOG, DeviceError, OptionError, PackageError, did_you_mean, first_line
from ..files.graph_file import map_model, refuse_functions, with_links_followed
from ..machine_limits import threads_within_limits
from . import kernels
from .placement import ATTENTION, CPU_PROVIDER, RECORD, placed_operators
from .plugins.known import PLUGINS
from .plugins.memory import DeviceMemory
from .plugins.registration import find_device
from .protocol import CPU, Device
from .signature import CacheTensor, Hints, Input, Values, read_cache, read_encoder_inputs, read_inputs, read_rotary_switch
from .windowed_graph import MOST_BYTES, windowed_model

IOBinding, OrtValue = onnxruntime.IOBinding, onnxruntime.OrtValue
AdapterFormat = onnxruntime.AdapterFormat
CUDA_PROVIDER = "CUDAExecutionProvider"
VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
INT8_CACHE_MIN_VERSION = (1, 31)
"""The first version that was tested with an 8-bit cache; 1.27 computed batches wrongly (microsoft/onnxruntime#28963)."""
DISABLED_OPTIMIZERS = ["NchwcTransformer", "SkipLayerNormFusion"]
"""The first changes the layout of convolutions, which decoders do not have, and crashes on some float16 graphs (1.31.1). The second
joins a sum and a norm in an operator that takes eight times as long as the norm where there are a thousand tokens (1.32)."""
CUDA_SETTINGS = {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
"""float32 is multiplied as float32, not with 10 bits; and an algorithm of convolution is chosen without trying all of them, which
ONNX Runtime does for every new length of a prompt."""
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
"""The session option that says where the weights of a graph lie that is opened from bytes."""
SPIN_MICROSECONDS = 800
"""How long idle threads spin: twice the loop's time between two runs, because waking a sleeping thread costs up to 5 % of a step.
With ONNX Runtime's default, a few milliseconds, a model that alternates with another one takes twice as long, because the other
model's threads still spin; with this limit it takes 10 % longer."""
ROUND_BY_BLOCK = "mlas.disable_kleidiai", "1"
"""On ARM: products of 4 bits round their inputs in blocks, as on x86 and as the certificate says. KleidiAI's kernels round a whole
row by one scale: with SmolLM2's Q4_1 weights, KL 0.027 from the unrounded product instead of 0.0034 (docs/boards.md)."""
INSTALL_CUDA = (
    'install it with: pip install "onnxruntime-gpu[cuda,cudnn]" && pip install --force-reinstall --no-deps onnxruntime-gpu; '
    "if that does not help, run: onnx-textgen doctor"
)


NO_HINTS = Hints()


@dataclasses.dataclass(frozen=True)
class OnnxRuntimeSession:
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
    most_tokens: int | None = None
    """See `Graph.most_tokens`."""
    memory: DeviceMemory | None = None
    """Where caches keep their tensors on a plug-in's device; None: in ONNX Runtime's own memory of `device`."""
    shares_weights: bool = False
    """Whether another session of the same weights takes little memory: this project's kernels compute the products."""

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
        """See `Graph.part_size`.

        On the CPU 256 is 2 % slower at 4 and 8 bits and 2 % faster in float32, and 512 is 10 % slower. On CUDA (H100, SmolLM2-135M,
        int4) parts of 128, 512, 2,048 and 4,096 are fed at 24,000, 94,000, 289,000 and 373,000 tokens a second.
        """
        fastest = 2048 if self.device.kind == "cuda" else 128
        return min(fastest, self.most_tokens or fastest)

    @property
    def short_part_size(self) -> int:
        """See `Graph.short_part_size`."""
        return 512 if self.device.kind == "cuda" else 64

    @property
    def is_accelerated(self) -> bool:
        """Whether another processor than the CPU computes the graph."""
        return self.memory is not None or self.device.kind == "cuda"

    @property
    def joins_rows(self) -> bool:
        """See `Graph.joins_rows`: on a plug-in's device each row has separate tensors."""
        return self.memory is None

    @functools.cached_property
    def cache_tensors(self) -> tuple[CacheTensor, ...]:
        """See `Graph.cache_tensors`; in the order of the graph's inputs. Raises `PackageError` if the cache is incomplete."""
        return read_cache(self.inputs, self.outputs, self.hints)

    @functools.cached_property
    def roles(self) -> dict[str, Input]:
        """See `Graph.roles`."""
        has_default = {node.name for node in self.ort.get_overridable_initializers()}
        return read_inputs(self.inputs, self.hints, self.cache_tensors, has_default)

    @functools.cached_property
    def encoder_inputs(self) -> dict[str, Input]:
        """See `Graph.encoder_inputs`."""
        return read_encoder_inputs(self.inputs)

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


ELSEWHERE = {"gpu": "cuda", "nvidia": "cuda", "vulkan": "webgpu", "metal": "mlx"}
"""Devices as people call them, and as we do."""


def has_cuda() -> bool:
    """Return whether the installed ONNX Runtime was built with CUDA."""
    return CUDA_PROVIDER in onnxruntime.get_available_providers()


def parse_device(name: str) -> tuple[str, int]:
    """Parse `auto`, `cpu`, `cuda`, a plug-in's device, or one with a number, `cuda:1`, to (kind, index); raises `OptionError`."""
    accelerators = ("cuda", *PLUGINS)
    pattern = rf"(auto|cpu)|({'|'.join(accelerators)})(?::([0-9]{{1,3}}))?"
    if not isinstance(name, str) or not (found := re.fullmatch(pattern, name)):
        names = ", ".join(("auto", "cpu", *accelerators, "cuda:N for another GPU"))
        others = "openvino, openvino:bf16, hybrid or hybrid:bf16"
        meant = did_you_mean(str(name), ("auto", "cpu", *accelerators, "openvino", "hybrid"), ELSEWHERE)
        raise OptionError(f"device should be {names}, {others}, found {name!r:.60}; {meant}onnx-textgen doctor shows what works")
    return found[1] or found[2], int(found[3] or 0)


def make_options(threads: int | None) -> onnxruntime.SessionOptions:
    """Make session options; `threads` None: one per physical core, within the limits of this process. Raises `OptionError`."""
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 1024):
        raise OptionError(f"threads should be a whole number from 1 to 1024, found {threads!r}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # fatal messages only: errors are raised, not printed
    options.intra_op_num_threads = threads or threads_within_limits() or 0  # 0: ONNX Runtime chooses, and pins its threads to cores
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_MICROSECONDS))
    options.inter_op_num_threads = 1
    options.add_session_config_entry(*ROUND_BY_BLOCK)
    return options


def open_variant(session: OnnxRuntimeSession, model: bytes) -> OnnxRuntimeSession:
    """Open another graph over the same weights, on the same device with the same options; raises `PackageError`."""
    assert session.path is not None, "the caller has checked"
    opened = open_on(session.path, session.device, session.ort.get_session_options(), session.hints, model=model)
    return dataclasses.replace(opened, most_tokens=session.most_tokens)


def open_on(
    path: Path,
    device: Device,
    options: onnxruntime.SessionOptions,
    hints: Hints = NO_HINTS,
    *,
    model: bytes | None = None,
    whole_past: bool = False,
) -> OnnxRuntimeSession:
    """Open the graph at `path` on exactly this device; `model`, if given, replaces the file's content.

    On the CPU, layers with a sliding window hold the end of a text only; with `whole_past` they hold all of it.

    Raises `DeviceError` if the device does not start, and `PackageError` if ONNX Runtime cannot open the graph.
    """
    own_model: Callable[[], bytes] | None = None
    if model is None:
        refuse_functions(path)
        if device.kind == "cpu" and not whole_past and (model := windowed_model(path)) is not None:
            own_model = functools.partial(windowed_content, path)
    faster = add_kernels(path, model, options) if device.kind == "cpu" and kernels.instructions() is not None else None
    model = faster or model
    if model is not None:
        model, folder = with_links_followed(path, model)
        set_weights_folder(options, folder)
    memory, providers, remedy = None, list[Any]((CPU_PROVIDER,)), INSTALL_CUDA
    if (plugin := PLUGINS.get(device.kind)) is not None:
        found = find_device(plugin, device.index)
        memory, providers, remedy = DeviceMemory(found), [], f"it needs {plugin.needs}; use the device cpu"
        if not options.has_providers():
            options.add_provider_for_devices([found], {})
    try:
        if device.kind == "cuda":
            load_cuda()
            providers.insert(0, (CUDA_PROVIDER, {"device_id": device.index} | CUDA_SETTINGS))
        ort = onnxruntime.InferenceSession(
            str(path) if model is None else model,
            options,
            providers=providers or None,
            disabled_optimizers=DISABLED_OPTIMIZERS,
            enable_fallback=0,
        )
        ins, outs = (*ort.get_inputs(), *ort.get_overridable_initializers()), ort.get_outputs()
        inputs, outputs = ({node.name: (node.shape, node.type) for node in nodes} for nodes in (ins, outs))
    except Exception as error:  # also a name that is no UTF-8
        if device.kind != "cpu":
            raise DeviceError(f"{device} was requested but did not start: {first_line(error)}; {remedy}") from error
        raise PackageError(f"ONNX Runtime cannot open {path.name}: {first_line(error)}; export or fetch the model again") from error
    if device.kind == "cuda" and ort.get_providers()[0] != CUDA_PROVIDER:
        raise DeviceError(f"{device} was requested but did not start (a driver or library is missing); {INSTALL_CUDA}")
    extra: dict[str, Any] = {"own_model": own_model, "memory": memory, "shares_weights": faster is not None}
    session = OnnxRuntimeSession(ort, device, inputs, outputs, hints, path, **extra)
    if VERSION < INT8_CACHE_MIN_VERSION and any(element == "tensor(int8)" for _, element in inputs.values()):
        needed = ".".join(map(str, INT8_CACHE_MIN_VERSION))
        raise PackageError(
            f"{path.name} keeps keys and values at 8 bits, for which onnxruntime {onnxruntime.__version__} is too old; "
            f"use {needed} or newer (pip install -U onnxruntime), or open the folder's main graph"
        )
    return session


def add_kernels(path: Path, model: bytes | None, options: onnxruntime.SessionOptions) -> bytes | None:
    """The graph, given as bytes or as its file, with this project's kernels; None if it has no products that they compute."""
    if model is None:
        with map_model(path) as content:
            if len(content) > MOST_BYTES or content.find(kernels.OPERATOR.encode()) < 0:
                return None
            model = content[:]
    try:
        if (found := kernels.with_kernels(model, path.parent)) is not None:
            options.register_custom_ops_library(str(kernels.LIBRARY))
        return found
    except (PackageError, ValueError, OSError):  # ONNX Runtime says what is wrong with a graph or its files
        return None
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's have no common type
        LOG.warning("ONNX Runtime does not take this project's kernels, so products are slower: %s", first_line(error))
        return None


def windowed_content(path: Path) -> bytes:
    """The graph that a session with windows has opened, read again; raises `PackageError` if the file has changed."""
    model = windowed_model(path)
    if model is None:
        raise PackageError(f"{path.name} has changed since it was opened; load the model again")
    return model


def set_weights_folder(options: onnxruntime.SessionOptions, folder: Path) -> None:
    """Say where the weights of a graph lie that is opened from bytes."""
    try:
        options.get_session_config_entry(WEIGHTS_FOLDER)
    except RuntimeError:  # it was not set; to set it twice would print a warning
        options.add_session_config_entry(WEIGHTS_FOLDER, str(folder))


def load_cuda() -> None:
    """Load the CUDA libraries that pip installed, if this build of ONNX Runtime needs them."""
    if hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):  # it prints the names of missing libraries
            onnxruntime.preload_dlls()


def open_whole(path: Path, device: Device, threads: int | None, hints: Hints) -> OnnxRuntimeSession:
    """Open the graph at `path` on an accelerator that computes its attention; raises `DeviceError` for one that does not.

    ONNX Runtime leaves an operator to the CPU if the device has no kernel for it; on CUDA that is GroupQueryAttention in float32.
    """
    options = make_options(threads)
    options.add_session_config_entry(*RECORD)
    session = open_on(path, device, options, hints)
    provider = PLUGINS[device.kind].provider if device.kind in PLUGINS else CUDA_PROVIDER
    places = placed_operators(session.ort)
    left = sorted(ATTENTION & places.get(CPU_PROVIDER, frozenset()))
    if left or provider not in places:
        raise DeviceError(f"{path} does not suit {device}: {why_unsuited(session, left)}, or use the device cpu")
    return session


def why_unsuited(session: OnnxRuntimeSession, left: Sequence[str]) -> str:
    """Which operators an accelerator has no kernel for, and which export has others."""
    if not left:
        return "none of its operators has a kernel there; take another device"
    types = " and ".join(sorted({tensor.dtype.name for tensor in session.cache_tensors if tensor.kind != "state"}))
    what = f"{left[0]} over {types} has no kernel there, and attention on the CPU would copy the cache for each token"
    if session.device.kind == "cuda":
        return f"{what}; export it with --precision fp16, at int8 or int4 with --activations fp16, or with --target standard"
    return f"{what}; export it with --target {'standard' if left[0] == 'GroupQueryAttention' else 'ort'}"


def open_session(
    path: Path, *, device: str = "auto", threads: int | None = None, hints: Hints = NO_HINTS, whole_past: bool = False
) -> OnnxRuntimeSession:
    """Open the graph at `path`; `auto` chooses CUDA if it starts and computes the graph's attention, else the CPU, and logs why.

    `whole_past`: see `open_on`.

    Raises `OptionError` for a wrong device or number of threads, and the errors of `open_on` and `open_whole`.
    """
    kind, index = parse_device(device)
    if kind == "cuda" and not has_cuda():
        raise DeviceError(f"CUDA was requested, but the installed onnxruntime has no CUDA provider; {INSTALL_CUDA}")
    if kind not in ("auto", "cpu"):
        return open_whole(path, Device(kind, index), threads, hints)
    if kind == "auto" and has_cuda():
        try:
            return open_whole(path, Device("cuda", index), threads, hints)
        except DeviceError as error:
            LOG.info("using the CPU: %s", error)
    return open_on(path, CPU, make_options(threads), hints, whole_past=whole_past)
