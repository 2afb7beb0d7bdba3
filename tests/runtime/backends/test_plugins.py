"""Devices that a plug-in of ONNX Runtime adds, up to the session's options: with a package that is made here, and no device."""

import sys
from pathlib import Path
from types import SimpleNamespace

import onnxruntime
import pytest

from onnx_textgen.backends import onnxruntime_session as session
from onnx_textgen.backends.plugins import registration
from onnx_textgen.backends.plugins.known import PLUGINS
from onnx_textgen.backends.plugins.plugin import Plugin
from onnx_textgen.cli import run
from onnx_textgen.diagnostics import devices as diagnostics
from onnx_textgen.errors import DeviceError
from onnx_textgen.package.locate import find_package

GRAPH = find_package() / "model.onnx"


class Runtime:
    """ONNX Runtime's functions for plug-ins: registers a library, after which it has devices, and opens sessions on them."""

    def __init__(self, plugin: Plugin, count: int, on_cpu: tuple[str, ...] = ()) -> None:
        self.plugin, self.on_cpu = plugin, on_cpu
        self.registered: list[tuple[str, str]] = []
        self.added: list[tuple[list, dict]] = []
        hardware = SimpleNamespace(type=SimpleNamespace(name="GPU"), metadata={}, vendor="Maker")
        memory = {"memory_info": lambda kind: None, "device": hardware}
        self.devices = [SimpleNamespace(ep_name=plugin.provider, number=index, **memory) for index in range(count)]

    def register(self, name: str, path: str) -> None:
        assert not self.registered, "a library is registered once"
        self.registered.append((name, path))

    def get_ep_devices(self) -> list:
        cpu = SimpleNamespace(ep_name="CPUExecutionProvider")
        return [cpu, *self.devices] if self.registered else [cpu]

    def session(self, path: str, options: onnxruntime.SessionOptions, providers: object, **rest: object) -> SimpleNamespace:
        assert providers is None, "the options have the provider"
        assert options.get_session_config_entry(session.RECORD[0]) == "1"
        placed = {self.plugin.provider: ("MatMul",), session.CPU_PROVIDER: ("Shape", *self.on_cpu)}
        parts = [(name, [SimpleNamespace(op_type=kind) for kind in kinds]) for name, kinds in placed.items()]
        nothing = dict.fromkeys(("get_inputs", "get_outputs", "get_overridable_initializers"), list)
        infos = [SimpleNamespace(ep_name=name, get_nodes=lambda nodes=nodes: nodes) for name, nodes in parts]
        return SimpleNamespace(get_provider_graph_assignment_info=lambda: infos, **nothing)


class Options(onnxruntime.SessionOptions):
    """Session options that keep what is added to them."""

    added: list[tuple[list, dict]]

    def has_providers(self) -> bool:
        return bool(self.added)

    def add_provider_for_devices(self, devices: list, options: dict) -> None:
        self.added.append((devices, options))


def pretend(
    monkeypatch: pytest.MonkeyPatch, folder: Path, plugin: Plugin, *, count: int = 2, on_cpu: tuple[str, ...] = ()
) -> Runtime:
    """Install a package of this plug-in, and pretend that ONNX Runtime loads it and finds devices."""
    (folder / f"{plugin.module}.py").write_text(f"def {plugin.library}():\n    return {str(folder / 'library.so')!r}\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, plugin.module, raising=False)
    runtime = Runtime(plugin, count, on_cpu)
    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", runtime.register)
    monkeypatch.setattr(onnxruntime, "get_ep_devices", runtime.get_ep_devices)
    monkeypatch.setattr(onnxruntime, "InferenceSession", runtime.session)
    monkeypatch.setattr(onnxruntime, "SessionOptions", type("Options", (Options,), {"added": runtime.added}))
    return runtime


every_plugin = pytest.mark.parametrize("plugin", PLUGINS.values(), ids=list(PLUGINS))


@every_plugin
def test_a_device_gets_its_provider_by_the_options_and_its_library_is_registered_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plugin: Plugin
) -> None:
    runtime = pretend(monkeypatch, tmp_path, plugin)
    opened = session.open_session(GRAPH, device=plugin.device)
    assert str(opened.device) == plugin.device
    assert opened.memory is not None and not opened.joins_rows
    assert runtime.registered == [(plugin.provider, str(tmp_path / "library.so"))]
    assert runtime.added == [([runtime.devices[0]], {})]
    runtime.added.clear()
    assert str(session.open_session(GRAPH, device=f"{plugin.device}:1").device) == f"{plugin.device}:1"
    assert runtime.added == [([runtime.devices[1]], {})]
    with pytest.raises(DeviceError, match=f"{plugin.device}:2 was requested, and there is only {plugin.device}:1"):
        session.open_session(GRAPH, device=f"{plugin.device}:2")


@every_plugin
def test_a_device_whose_package_is_missing_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, plugin: Plugin
) -> None:
    monkeypatch.setattr(registration, "is_installed", lambda plugin: False)
    with pytest.raises(DeviceError, match=f"install it with: pip install {plugin.distribution}$") as caught:
        session.open_session(GRAPH, device=plugin.device)
    assert "\n" not in str(caught.value)


@every_plugin
def test_a_plugin_that_finds_nothing_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plugin: Plugin) -> None:
    pretend(monkeypatch, tmp_path, plugin, count=0)
    with pytest.raises(DeviceError, match=f"{plugin.distribution} finds no device on this machine; it needs {plugin.needs}"):
        session.open_session(GRAPH, device=plugin.device)


def test_a_library_that_cannot_be_loaded_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, tmp_path, PLUGINS["webgpu"])

    def fail(name: str, path: str) -> None:
        raise RuntimeError("libvulkan.so.1: cannot open\nmore")

    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", fail)
    with pytest.raises(DeviceError, match=r"onnxruntime-ep-webgpu cannot be loaded: libvulkan.so.1: cannot open") as caught:
        session.open_session(GRAPH, device="webgpu")
    assert "\n" not in str(caught.value)


def test_an_onnxruntime_without_plugins_is_refused_with_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", "1.27.0")
    with pytest.raises(DeviceError, match=r"webgpu needs onnxruntime 1.28 or newer, and 1.27.0 is installed; update it with: pip"):
        session.open_session(GRAPH, device="webgpu")


@pytest.mark.parametrize(("operator", "target"), [("GroupQueryAttention", "standard"), ("Attention", "ort")])
def test_a_device_without_a_kernel_for_attention_is_refused_with_the_target_that_has_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, operator: str, target: str
) -> None:
    pretend(monkeypatch, tmp_path, PLUGINS["mlx"], on_cpu=(operator,))
    with pytest.raises(DeviceError, match=f"does not suit mlx: {operator} over .* export it with --target {target}, or use the"):
        session.open_session(GRAPH, device="mlx")


def test_doctor_lists_a_plugin_with_what_it_finds_and_those_that_can_be_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = PLUGINS["qnn"]
    monkeypatch.setattr(diagnostics.metadata, "version", lambda name: "2.7" if name == plugin.distribution else missing(name))
    for probe, text in (
        ("print('a warning'); print('[\"NPU, Maker\"]')", f"onnxruntime-qnn 2.7 on NPU, Maker: {plugin.state}"),
        ("print('\"it needs more\"')", "it needs more"),
        ("import os; os._exit(3)", "onnxruntime-qnn 2.7: it ended the process that loaded it (status 3)"),
    ):
        monkeypatch.setattr(diagnostics, "PROBE", probe)
        run(["doctor"])
        out = " ".join(capsys.readouterr().out.split())
        assert f"device qnn {text}" in out
        assert "more devices webgpu: pip install onnxruntime-ep-webgpu" in out


def missing(name: str) -> str:
    raise diagnostics.metadata.PackageNotFoundError(name)
