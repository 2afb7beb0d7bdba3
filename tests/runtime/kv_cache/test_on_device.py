"""The cache on a plug-in's device keeps what the CPU's keeps, and a device that computes wrongly is noticed.

Here the device is the CPU.
"""

import ctypes
import dataclasses
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import onnx_textgen
from onnx_textgen.api.device_check import check_device, check_golden
from onnx_textgen.backends.onnxruntime_run import BoundRun
from onnx_textgen.backends.onnxruntime_session import OnnxRuntimeSession, open_session
from onnx_textgen.backends.plugins.memory import DeviceMemory
from onnx_textgen.backends.protocol import Device
from onnx_textgen.errors import DeviceError
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.kv_cache.on_device import OnDeviceCache
from onnx_textgen.package.reading import read_manifest
from support.cache_graphs import GRAPHS, VOCAB_SIZE

PACKAGES = Path(__file__).parents[2] / "packages"
IDS = [(37 * place + 11) % 250 for place in range(150)]


@pytest.fixture(params=["ort", "standard"])
def package(request: pytest.FixtureRequest) -> Path:
    return PACKAGES / str(request.param)


def on_device(package: Path) -> OnnxRuntimeSession:
    """The graph as a plug-in would open it, on a device that works on the CPU's memory."""
    return on_cpu_memory(open_session(package / "model.onnx", device="cpu", threads=1))


def on_cpu_memory(session: OnnxRuntimeSession) -> OnnxRuntimeSession:
    """A session as a plug-in would open it, on a device that works on the CPU's memory."""
    return dataclasses.replace(session, memory=DeviceMemory(SimpleNamespace(memory_info=lambda kind: None)))


def pair(package: Path, rows: int = 3) -> tuple[Decoder, Decoder]:
    """A decoder over the cache on a device, and one over the CPU's."""
    geometry = read_manifest(package).geometry
    ours = Decoder(on_device(package), geometry, rows=rows)
    assert isinstance(ours.cache, OnDeviceCache)
    return ours, Decoder(open_session(package / "model.onnx", device="cpu", threads=1), geometry, rows=rows)


def test_a_snapshot_moves_between_the_device_and_the_cpu(package: Path) -> None:
    ours, theirs = pair(package)
    for source, target in ((ours, theirs), (theirs, ours)):
        source.rewind(0)
        source.feed(IDS[:40])
        target.restore(source.snapshot(), 31, row=1)
        wanted = Decoder(theirs.graph, theirs.geometry)
        wanted.feed(IDS[:31])
        np.testing.assert_allclose(target.feed([9], row=1), wanted.feed([9]), rtol=0, atol=1e-5)


def test_the_memory_of_the_longest_row_is_reserved_and_grows(package: Path) -> None:
    ours, _ = pair(package)
    ours.reserve(90, row=1)
    assert ours.cache.capacity >= (90 if package.name == "ort" else 0)
    ours.feed(IDS[:120], row=1)
    assert ours.cache.capacity >= 120


def test_rows_are_not_joined_in_one_run(package: Path) -> None:
    ours, theirs = pair(package)
    assert theirs.can_batch_decode and not ours.can_batch_decode
    assert not ours.can_prefill_together([10, 10], 100)


def break_runs(monkeypatch: pytest.MonkeyPatch, wrong: range) -> None:
    """Make runs of these numbers of tokens compute wrong logits."""
    right = BoundRun.compute

    def compute(run: BoundRun, output: str, shape: tuple[int, ...], extra_outputs: object = ()) -> object:
        found, extra = right(run, output, shape, extra_outputs)  # type: ignore[arg-type]
        return (found + np.arange(found.size).reshape(found.shape) % 2 if shape[1] in wrong else found), extra

    monkeypatch.setattr(BoundRun, "compute", compute)


def test_a_device_that_computes_right_is_not_limited(package: Path) -> None:
    opened = on_device(package)
    assert check_device(opened, read_manifest(package).geometry) is opened


def test_a_device_that_computes_many_tokens_wrongly_is_fed_few(
    package: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, theirs = pair(package)
    wanted = theirs.feed(IDS, every_position=True)
    break_runs(monkeypatch, range(32, 1000))
    with caplog.at_level(logging.WARNING, logger="onnx_textgen"):
        limited = check_device(on_device(package), read_manifest(package).geometry)
    assert limited.most_tokens == limited.part_size == 16
    assert "computes 128 tokens at once wrongly" in caplog.text and "in parts of 16" in caplog.text
    found = Decoder(limited, theirs.geometry).feed(IDS, every_position=True)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_a_device_that_computes_even_few_tokens_wrongly_is_refused(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_runs(monkeypatch, range(2, 17))
    with pytest.raises(DeviceError, match="computes 16 tokens at once wrongly, so it does not work on this machine"):
        check_device(on_device(package), read_manifest(package).geometry)


def test_a_device_that_computes_something_else_throughout_is_refused_and_auto_takes_the_cpu(
    package: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = BoundRun.compute

    def compute(run: BoundRun, output: str, shape: tuple[int, ...], extra_outputs: object = ()) -> object:
        found, extra = right(run, output, shape, extra_outputs)  # type: ignore[arg-type]
        return (found if run.session.memory is None else found[..., ::-1]), extra

    def open_there(path: Path, *, device: str, threads: int | None, whole_past: bool) -> OnnxRuntimeSession:
        return open_session(path, device="cpu", threads=1) if device == "cpu" else on_device(path.parent)

    monkeypatch.setattr(BoundRun, "compute", compute)
    monkeypatch.setattr("onnx_textgen.api.opening.open_session", open_there)
    with pytest.raises(DeviceError, match=r"computes .* wrongly: it finds \d+ of \d+ tokens that the maker recorded"):
        onnx_textgen.load(package, device="webgpu")
    with caplog.at_level(logging.INFO, logger="onnx_textgen"):
        assert onnx_textgen.load(package, device="auto").device == "cpu"
    assert "using the CPU: " in caplog.text


def test_a_device_that_fails_is_refused_when_the_model_is_opened(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> object:
        raise RuntimeError("no kernel for this size")

    opened, manifest = on_device(package), read_manifest(package)
    monkeypatch.setattr(BoundRun, "compute", fail)
    with pytest.raises(DeviceError, match=r"cannot compute .*no kernel for this size; use the device cpu"):
        check_golden(Decoder(opened, manifest.geometry), manifest, opened.device)


def test_a_model_on_a_device_writes_scores_and_answers_several_prompts_as_on_the_cpu(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_there(path: Path, *, device: str, threads: int | None, whole_past: bool) -> OnnxRuntimeSession:
        assert device == "webgpu"
        return on_device(path.parent)

    cpu = onnx_textgen.load(package, device="cpu", threads=1)
    monkeypatch.setattr("onnx_textgen.api.opening.open_session", open_there)
    ours = onnx_textgen.load(package, device="webgpu", threads=1)
    prompts = ["Once upon a time", "The dog", "A"]
    for options in ({"temperature": 0}, {"num_beams": 3, "temperature": 0}, {"seed": 3}):
        found, wanted = (
            [each.token_ids for each in model.generate(prompts, max_new_tokens=20, **options)] for model in (ours, cpu)
        )
        assert found == wanted
    scores = [model.score("Once upon a time there was a dog").logprobs for model in (ours, cpu)]
    np.testing.assert_allclose(*scores, atol=1e-5)


def test_inputs_are_bound_for_each_run_on_another_device_than_the_cpu_where_binding_copies_them() -> None:
    class Binding:
        """What ONNX Runtime does on a GPU: it copies an input when it is bound."""

        def __init__(self) -> None:
            self.copies: list[int] = []

        def bind_input(self, *given: Any) -> None:
            shape, pointer = given[-2:]
            self.copies += np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int64)), shape).tolist()

    session, never_changes = SimpleNamespace(device=Device("cuda")), np.array([9])
    never_changes.flags.writeable = False
    run = BoundRun(session, binding := Binding())  # type: ignore[arg-type]
    for number in (3, 4, 5):
        run.set_input("input_ids", np.array([number]))
        run.set_input("logits_positions", never_changes)
    assert binding.copies == [3, 9, 4, 5]


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_with_every_kind_of_cache_have_the_logits_of_numpy(name: str, tmp_path: Path) -> None:
    tiny = GRAPHS[name]
    decoder = tiny.decoder(on_cpu_memory(tiny.open(tmp_path)), rows=2)
    ids = [(5 * place + 2) % VOCAB_SIZE for place in range(11)]
    wanted = tiny.logits(ids)
    found = [decoder.feed(ids[:5], row=1, every_position=True), decoder.feed(ids[5:6], row=1), decoder.feed(ids[6:9], row=1)[-1:]]
    decoder.keep(row=1)
    decoder.fork(1, 0)
    found += [decoder.feed(ids[9:10], row=0), decoder.feed(ids[9:10], row=1), decoder.feed(ids[10:11], row=0)]
    decoder.rewind(9, row=1)
    found.append(decoder.feed(ids[9:10], row=1))
    places = [0, 1, 2, 3, 4, 5, 8, 9, 9, 10, 9]
    np.testing.assert_allclose(np.concatenate(found), wanted[places], atol=2e-5 * np.abs(wanted).max())
