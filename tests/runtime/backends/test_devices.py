"""Choosing a device, with and without CUDA in the installed ONNX Runtime."""

import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import onnxruntime
import pytest

from onnx_textgen.backends import onnxruntime_session as session
from onnx_textgen.errors import DeviceError, OptionError, PackageError
from onnx_textgen.package.locate import find_package

GRAPH = find_package() / "model.onnx"


class CpuOnly:
    """An InferenceSession that, asked for CUDA, quietly runs on the CPU, as ONNX Runtime does."""

    def __init__(self, path: str, options: object, providers: list, **rest: object) -> None:
        self.asked, self.rest = providers, rest

    def get_providers(self) -> list[str]:
        return [session.CPU_PROVIDER]

    def get_inputs(self) -> list:
        return []

    get_overridable_initializers = get_outputs = get_inputs


class NoDriver(CpuOnly):
    """An InferenceSession that raises where CUDA is asked for, as ONNX Runtime does without a driver or a device."""

    def __init__(self, path: str, options: object, providers: list, **rest: object) -> None:
        if len(providers) > 1:
            raise RuntimeError("CUDA failure 35: CUDA driver version is insufficient\nsecond line")
        super().__init__(path, options, providers)


class WorkingCuda(CpuOnly):
    """An InferenceSession on whatever was asked for, of a graph with one key tensor."""

    past, present, element_type = "cache_length", "cache_length", "tensor(float)"
    attention = session.CPU_PROVIDER
    """The provider that computes attention."""

    def get_provider_graph_assignment_info(self) -> list:
        nodes = {session.CUDA_PROVIDER: ["MatMul"], session.CPU_PROVIDER: ["Squeeze"]}
        nodes[self.attention].append("GroupQueryAttention")
        parts = [(name, [SimpleNamespace(op_type=kind) for kind in kinds]) for name, kinds in nodes.items()]
        return [SimpleNamespace(ep_name=name, get_nodes=lambda nodes=nodes: nodes) for name, nodes in parts]

    def get_providers(self) -> list[str]:
        return [provider if isinstance(provider, str) else provider[0] for provider in self.asked]

    def get_inputs(self) -> list:
        shape = ["batch", 2, self.past, 8]
        return [SimpleNamespace(name="past_key_values.0.key", shape=shape, type=self.element_type)]

    def get_outputs(self) -> list:
        return [SimpleNamespace(name="present.0.key", shape=["batch", 2, self.present, 8], type=self.element_type)]

    def get_overridable_initializers(self) -> list:
        return []


@pytest.fixture
def pretended_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ONNX Runtime built with CUDA on a machine where CUDA does not start."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [session.CUDA_PROVIDER, session.CPU_PROVIDER])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
    monkeypatch.setattr(onnxruntime, "InferenceSession", CpuOnly)


def test_cuda_asked_for_and_not_built_in_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [session.CPU_PROVIDER])
    with pytest.raises(DeviceError, match="no CUDA provider; install it with: pip install") as caught:
        session.open_session(GRAPH, device="cuda")
    assert "\n" not in str(caught.value)


def test_cuda_asked_for_and_not_starting_is_a_clear_error(pretended_cuda: None) -> None:
    with pytest.raises(DeviceError, match="did not start"):
        session.open_session(GRAPH, device="cuda:1")


def test_auto_takes_the_cpu_where_cuda_does_not_start_and_says_so(pretended_cuda: None) -> None:
    assert str(session.open_session(GRAPH, device="auto").device) == "cpu"


def test_auto_on_a_cpu_build_is_the_cpu() -> None:
    assert str(session.open_session(Path(GRAPH), device="auto").device) in ("cpu", "cuda:0")


def test_cuda_that_fails_by_exception_is_a_device_error_and_auto_takes_the_cpu_and_logs_it(
    pretended_cuda: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(onnxruntime, "InferenceSession", NoDriver)
    with pytest.raises(DeviceError, match="cuda:7 was requested but did not start: CUDA failure 35") as caught:
        session.open_session(GRAPH, device="cuda:7")
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with caplog.at_level(logging.INFO, logger="onnx_textgen"):
        assert str(session.open_session(GRAPH, device="auto").device) == "cpu"
    assert "using the CPU: cuda:0 was requested but did not start: CUDA failure 35" in caplog.text


def test_a_graph_that_cannot_be_opened_is_a_package_error_also_where_cuda_was_tried_first(
    pretended_cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("no protobuf")

    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)
    with pytest.raises(PackageError, match=r"cannot open model\.onnx: no protobuf"):
        session.open_session(GRAPH, device="auto")


def test_a_graph_with_a_name_that_is_no_utf8_is_a_package_error(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_bytes(GRAPH.read_bytes().replace(b"input_ids", b"input_\xffds"))
    shutil.copytree(GRAPH.with_name("onnx"), tmp_path / "onnx")
    with pytest.raises(PackageError, match=r"cannot open model\.onnx: .*utf-8"):
        session.open_session(graph)


def test_cuda_is_refused_where_it_does_not_compute_attention_and_auto_takes_the_cpu_and_logs_it(
    pretended_cuda: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(onnxruntime, "InferenceSession", WorkingCuda)
    with pytest.raises(DeviceError, match="GroupQueryAttention over float32 has no kernel there") as caught:
        session.open_session(GRAPH, device="cuda")
    assert "--activations fp16" in str(caught.value) and "\n" not in str(caught.value)
    with caplog.at_level(logging.INFO, logger="onnx_textgen"):
        assert str(session.open_session(GRAPH, device="auto").device) == "cpu"
    assert f"using the CPU: {caught.value}" in caplog.text
    monkeypatch.setattr(WorkingCuda, "attention", session.CUDA_PROVIDER)
    for device in ("auto", "cuda"):
        assert str(session.open_session(GRAPH, device=device).device) == "cuda:0"


def test_two_lengths_without_a_name_do_not_make_a_cache_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "InferenceSession", WorkingCuda)
    assert session.open_session(GRAPH, device="cpu").shares_cache
    monkeypatch.setattr(WorkingCuda, "past", None)
    monkeypatch.setattr(WorkingCuda, "present", None)
    assert not session.open_session(GRAPH, device="cpu").shares_cache


@pytest.mark.parametrize(
    "device",
    [None, 0, "gpu", "cuda:x", "cuda:\u00b2", "cuda:" + "9" * 5000, "cuda:", "cpu:1", "auto:0", "", "cpu\n", "webgpu:x", "WebGPU"],
)
def test_a_device_that_does_not_exist_is_refused(device) -> None:
    with pytest.raises(OptionError, match="device should be") as caught:
        session.open_session(GRAPH, device=device)
    assert "\n" not in str(caught.value)
