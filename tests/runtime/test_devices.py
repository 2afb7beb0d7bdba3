"""Choosing a device, with and without CUDA in the installed ONNX Runtime."""

from pathlib import Path

import onnxruntime
import pytest

from onnx_textgen import session
from onnx_textgen.artifact import find_package
from onnx_textgen.errors import DeviceError

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
