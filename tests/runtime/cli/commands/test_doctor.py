"""`onnx-textgen doctor`: each thing that may be wrong is named with the line that mends it."""

import dataclasses
import json

import pytest

from onnx_textgen.cli import run
from onnx_textgen.diagnostics import doctor, machine, problems

CPU = machine.Engine("1.31.1", {"onnxruntime": "1.31.1"}, "onnxruntime", ("CPUExecutionProvider",), ())
BOTH = {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.1"}


def fixes(engine):
    return [problem.fix for problem in problems.engine_problems(engine)]


def test_the_facts_of_this_machine_are_found():
    report = doctor.examine()
    assert report.engine.version is not None
    assert "CPUExecutionProvider" in report.engine.providers
    assert report.engine.winner in report.engine.installed
    assert report.telemetry_off
    assert report.cores >= 1
    assert "onnx-textgen" in report.versions


DIFFERENT = {**BOTH, "onnxruntime": "1.30.0"}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, []),
        ({"installed": BOTH}, ["pip install --force-reinstall --no-deps onnxruntime-gpu"]),
        ({"installed": BOTH, "winner": "onnxruntime-gpu"}, []),
        (
            {"installed": DIFFERENT, "winner": "onnxruntime-gpu"},
            ["pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"],
        ),
        ({"missing_libraries": ("libcublas.so.12", "libcudnn.so.9")}, ['pip install "onnxruntime-gpu[cuda,cudnn]"']),
    ],
)
def test_what_is_wrong_with_an_engine_has_the_line_that_mends_it(changes, wanted):
    engine = dataclasses.replace(CPU, **changes)
    assert fixes(engine) == wanted
    assert all(name in problems.engine_problems(engine)[0].what for name in engine.missing_libraries)


def test_an_engine_that_cannot_be_imported_is_a_problem_and_no_crash(monkeypatch):
    def import_module(name):
        raise ImportError(f"{name} is broken")

    monkeypatch.setattr(machine.importlib, "import_module", import_module)
    engine = machine.examine_engine()
    assert engine.version is None
    assert fixes(engine) == ["pip install --force-reinstall onnxruntime"]


def test_the_libraries_a_provider_wants_are_read_from_its_file(tmp_path, monkeypatch):
    provider = tmp_path / "libonnxruntime_providers_cuda.so"
    provider.write_bytes(
        b"\x7fELF\0libcublasLt.so.12\0libcudnn.so.9\0libcudart.so.12\0libc.so.6\0libnvrtc.so.9\0libnvrtc.so.12\0libcudnn.so.9\0"
    )
    monkeypatch.setattr(machine, "can_load", lambda name: name == "libcudart.so.12")
    assert machine.missing_libraries(provider) == ["libcublasLt.so.12", "libcudnn.so.9", "libnvrtc.so.12"]
    assert machine.missing_libraries(tmp_path / "nothing.so") == []


def test_a_library_that_is_nowhere_cannot_be_loaded():
    assert not machine.can_load("libcublas_that_is_nowhere.so.99")


def test_embedded_models_that_are_damaged_or_missing_are_problems(tmp_path):
    state = doctor.examine_model(tmp_path)
    assert "manifest.json" in state
    assert [problem.what for problem in problems.model_problems({"story": state, "other": "ok"})] == [
        f"the embedded model story does not verify: {state}"
    ]
    assert len(problems.model_problems({})) == 1


def test_telemetry_that_the_user_switched_on_is_said(monkeypatch):
    monkeypatch.setenv(doctor.TELEMETRY_VARIABLE, "0")
    report = doctor.examine()
    assert not report.telemetry_off
    assert "export ORT_DISABLE_TELEMETRY=1" in [problem.fix for problem in report.problems]


def test_more_threads_than_a_container_gives_time_for_are_a_problem(monkeypatch):
    monkeypatch.setenv(doctor.THREADS_VARIABLE, "4")
    assert [problem.fix for problem in problems.thread_problems(1.5)] == ["unset ONNX_TEXTGEN_THREADS"]
    assert problems.thread_problems(None) == problems.thread_problems(4.0) == []
    monkeypatch.delenv(doctor.THREADS_VARIABLE)
    assert problems.thread_problems(1.5) == []


def test_a_missing_and_an_old_package_are_problems():
    requires = ["numpy>=999.1", "no-such-package>=1", "onnxruntime>=1.27", "tokenizers>=0.1", 'gradio>=999; extra == "demo"']
    fixes_found = [problem.fix for problem in problems.requirement_problems(requires, CPU)]
    assert fixes_found == ['pip install -U "numpy>=999.1"', 'pip install "no-such-package>=1"']
    old = dataclasses.replace(CPU, version="1.20.1", winner="onnxruntime-gpu")
    assert [problem.fix for problem in problems.requirement_problems(requires[2:], old)] == [
        'pip install -U "onnxruntime-gpu>=1.27"'
    ]


def test_a_variable_that_names_no_model_is_a_problem(monkeypatch, tmp_path):
    for value, is_wrong in (("", False), ("story", False), (str(tmp_path), False), ("owner/name", False), ("stroy", True)):
        monkeypatch.setenv(problems.MODEL_VARIABLE, value)
        assert [problem.fix for problem in problems.variable_problems()] == ["unset ONNX_TEXTGEN_MODEL"] * is_wrong


def test_variables_are_shown_and_secrets_are_not(monkeypatch):
    monkeypatch.setenv("ONNX_TEXTGEN_THREADS", "2")
    monkeypatch.setenv("ONNX_TEXTGEN_API_KEY", "secret")
    found = machine.environment()
    assert (found["ONNX_TEXTGEN_THREADS"], found["ONNX_TEXTGEN_API_KEY"]) == ("2", "set")


@pytest.fixture
def report(monkeypatch):
    def put(*problems):
        found = dataclasses.replace(doctor.examine(), problems=problems)
        monkeypatch.setattr(doctor, "examine", lambda: found)

    return put


def test_a_healthy_installation_exits_with_0(report, capsys):
    report()
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "ONNX Runtime" in out
    assert out.endswith("no problems found\n")


def test_a_problem_is_shown_with_its_fix_and_exits_with_1(report, capsys):
    report(problems.Problem("something is wrong", "pip install something"))
    assert run(["doctor"]) == 1
    assert capsys.readouterr().out.endswith("problem: something is wrong\n    fix: pip install something\n")


def test_json_has_the_facts_and_the_problems(report, capsys):
    report(problems.Problem("something is wrong", "pip install something"))
    assert run(["doctor", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["problems"] == [{"what": "something is wrong", "fix": "pip install something"}]
    assert "CPUExecutionProvider" in facts["engine"]["providers"]
