"""`onnx-textgen bench --devices`: which device is fastest here, as a table and as JSON."""

import dataclasses
import json
import re
import subprocess

import pytest

from onnx_textgen.cli import run
from onnx_textgen.diagnostics import device_speed
from onnx_textgen.diagnostics.benchmark import Measurement
from onnx_textgen.diagnostics.device_speed import DeviceSpeed, best_of

QUICK = ["--rounds", "1", "--prompt-tokens", "8", "--new-tokens", "4", "--threads", "1"]


MEASURED = Measurement(
    **{"model": "story", "device": "cpu", "precision": "int8", "target": "ort", "threads": 2, "prompt_tokens": 8, "new_tokens": 4},
    **{"rounds": 1, "load_seconds": 0.5, "prefill_tokens_per_second": 1000.0, "decode_tokens_per_second": 50.0},
    **{"first_token_ms": 12.0, "cache_mib": 1.0, "peak_memory_mib": 100.0, "batch_tokens_per_second": 200.0},
)


def test_the_best_of_each_column_is_the_most_or_the_least():
    other = dataclasses.replace(MEASURED, prefill_tokens_per_second=2000.0, first_token_ms=6.0, load_seconds=2.0)
    alone = dataclasses.replace(other, peak_memory_mib=None, batch_tokens_per_second=None)
    assert best_of([DeviceSpeed("a", MEASURED), DeviceSpeed("b", alone), DeviceSpeed("c", None, "no")]) == {
        "prefill_tokens_per_second": {"b"},
        "decode_tokens_per_second": {"a", "b"},
        "first_token_ms": {"b"},
        "load_seconds": {"a"},
    }
    assert best_of([DeviceSpeed("a", MEASURED)]) == {}


@pytest.fixture
def devices(monkeypatch):
    """Three devices of which two run the model; the options that each was asked with."""
    asked = []
    fast = dataclasses.replace(MEASURED, prefill_tokens_per_second=2500.0, load_seconds=2.0)
    speeds = {
        "cpu": DeviceSpeed("cpu", MEASURED),
        "openvino": DeviceSpeed("openvino", fast),
        "hybrid": DeviceSpeed("hybrid", None, "a second engine is not possible; take the device cpu"),
    }

    def measure_on(device, options):
        asked.append((device, *options))
        return speeds[device]

    monkeypatch.setattr(device_speed, "installed_devices", lambda: list(speeds))
    monkeypatch.setattr(device_speed, "measure_on", measure_on)
    monkeypatch.setenv("COLUMNS", "120")
    return asked


def test_each_device_is_a_row_whose_best_values_are_marked_and_a_refusal_is_a_line(devices, capsys, monkeypatch):
    monkeypatch.setenv("ONNX_TEXTGEN_DEVICE", "openvino")
    assert run(["bench", "story", "--devices", *QUICK]) == 0
    given = ("--prompt-tokens=8", "--new-tokens=4", "--rounds=1", "--threads=1", "--", "story")
    assert devices == [(name, *given) for name in ("cpu", "openvino", "hybrid")]
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "cpu 1,000 *50.0 *200 *12.0 *0.50 *100" in lines
    assert "openvino *2,500 *50.0 *200 *12.0 2.00 *100" in lines
    assert lines[-1] == "hybrid a second engine is not possible; take the device cpu"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(["bench", "story", "--devices"]) == 0
    assert re.search("\x1b\\[1m *\\*2,500 *\x1b\\[0m", capsys.readouterr().out)


def test_the_devices_as_json(devices, capsys):
    assert run(["bench", "--devices", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["devices"]
    assert found["cpu"] == dataclasses.asdict(MEASURED)
    assert found["hybrid"] == {"problem": "a second engine is not possible; take the device cpu"}
    assert all("--" not in options for options in devices), "no model is named, so the default is measured"


def test_a_device_beside_all_devices_is_refused_before_anything_is_measured(devices, capsys):
    assert run(["bench", "story", "--devices", "--device", "cpu"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), "leave out --device" in err, devices) == ("", 1, True, [])


def test_a_model_that_runs_on_no_device_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(device_speed, "installed_devices", lambda: ["cpu"])
    monkeypatch.setattr(device_speed, "measure_on", lambda device, options: DeviceSpeed(device, None, "it is damaged"))
    assert run(["bench", "--devices"]) == 1
    assert capsys.readouterr().out.split() == ["cpu", "it", "is", "damaged"]


def test_a_device_is_measured_in_a_new_process_and_its_error_is_one_line():
    measured = device_speed.measure_on("cpu", [*QUICK, "--", "story"]).measured
    assert measured is not None
    assert (measured.model, measured.device, measured.prompt_tokens, measured.threads) == ("story", "cpu", 8, 1)
    refused = device_speed.measure_on("nothing", ["--", "story"])
    assert (refused.device, refused.measured) == ("nothing", None)
    assert refused.problem is not None
    assert refused.problem.startswith("device should be auto, cpu,")


@pytest.mark.parametrize(
    ("status", "stdout", "stderr", "problem"),
    [
        (0, "hello\n{}", "", "its process printed something else than a measurement: 'hello"),
        (-11, "", "a harmless warning\n", "its process ended without an error message (status -11)"),
        (2, "", "a warning\nerror: no such model\n  at some place\n", "no such model"),
    ],
)
def test_a_process_that_fails_or_says_something_else_loses_no_other_device(status, stdout, stderr, problem, monkeypatch):
    done = subprocess.CompletedProcess([], status, stdout, stderr)
    monkeypatch.setattr(device_speed.subprocess, "run", lambda *_, **__: done)
    found = device_speed.measure_on("cpu", [])
    assert (found.measured, (found.problem or "")[: len(problem)]) == (None, problem)


def test_a_wrong_name_is_one_error(devices, capsys):
    assert run(["bench", "/nonexistent", "--devices"]) != 0
    assert capsys.readouterr().err.count("error:") == 1
    assert not devices


def test_the_devices_of_this_installation_begin_with_the_cpu():
    assert device_speed.installed_devices()[0] == "cpu"
