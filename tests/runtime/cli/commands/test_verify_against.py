"""`verify --against` hands over to whoever can ask PyTorch, shows what came of it, and says what to install where nobody can."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from onnx_textgen.cli import run
from onnx_textgen.cli.commands.verify import GROUP
from onnx_textgen.errors import OnnxTextgenError
from onnx_textgen.extras import remedy
from onnx_textgen.package.locate import find_package

FOLDER = find_package("tiny-transformer")
SCENARIO = {
    "name": "whole prompt",
    "tokens": 48,
    "logits_error": 1.5e-6,
    "top1_agreement": 1.0,
    "kl_divergence": 2e-13,
    "perplexity_change": 0.0123,
}


@pytest.fixture
def install(monkeypatch):
    """Put a function behind an entry point of the group, or none."""

    def put(function):
        module = ModuleType("a_verifier")
        module.verify_against = function
        monkeypatch.setitem(sys.modules, "a_verifier", module)
        points = [EntryPoint("pytorch", "a_verifier:verify_against", GROUP)] if function is not None else []
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == GROUP else [])

    return put


def verify(*options: str) -> int:
    return run(["verify", str(FOLDER), "--device", "cpu", "--threads", "1", *options])


def test_folder_and_source_go_to_the_function_and_its_records_into_the_table(install, capsys):
    asked = []

    def compare(folder: Path, source: str, report) -> list[dict]:
        report("asking PyTorch")
        asked.append((folder, source))
        return [SCENARIO, {**SCENARIO, "name": "long text", "admitted": True}]

    install(compare)
    assert verify("--against", "my.py:build") == 0
    assert asked == [(FOLDER, "my.py:build")]
    out, err = capsys.readouterr()
    assert "all the same" in out
    assert "compared with PyTorch" in out
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "scenario positions logits error same top-1 KL perplexity" in rows
    assert "whole prompt 48 1.5e-06 100.0% 2.0e-13 +1.23%" in rows
    assert "long text 48 1.5e-06 100.0% 2.0e-13 +1.23%" in rows
    assert "DIFFERENT" not in out
    assert err == ""


def test_an_adapter_goes_to_the_function_and_is_refused_without_a_base(install, capsys):
    asked = []

    def compare(folder: Path, source: str, report, *, adapter: str) -> list[dict]:
        asked.append((source, adapter))
        return []

    install(compare)
    assert verify("--against", "base", "--adapter", "owner/lora") == 0
    assert asked == [("base", "owner/lora")]
    assert verify("--adapter", "owner/lora") == 2
    assert "add --against BASE" in capsys.readouterr().err


def test_a_scenario_that_is_not_admitted_is_marked_and_ends_with_1(install, capsys):
    install(lambda folder, source, report: [SCENARIO, {**SCENARIO, "name": "long text", "admitted": False}])
    assert verify("--against", "checkpoint") == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "DIFFERENT" in line] == [line for line in lines if "long text" in line]


def test_its_error_is_one_line(install, capsys):
    def refuse(folder, source, report):
        raise OnnxTextgenError("checkpoint is no checkpoint; give a folder")

    install(refuse)
    assert verify("--against", "checkpoint") == 1
    assert capsys.readouterr().err == "error: checkpoint is no checkpoint; give a folder\n"


def test_without_the_exporter_it_is_answered_with_the_line_that_adds_it_before_anything_else(install, capsys):
    install(None)
    assert verify("--against", "checkpoint") == 1
    wanted = f"error: verify --against needs the exporter; {remedy('export')}\n"
    assert capsys.readouterr() == ("", wanted)


def test_a_missing_extra_is_answered_with_the_line_that_adds_it(install, capsys):
    def needs(folder, source, report):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    install(needs)
    assert verify("--against", "checkpoint") == 1
    wanted = f"error: verify --against needs torch, which is not installed; {remedy('export')}\n"
    assert capsys.readouterr().err == wanted


def test_without_a_source_nobody_is_asked(install, capsys):
    install(lambda *anything: pytest.fail("asked"))
    assert verify() == 0
    assert "compared with PyTorch" not in capsys.readouterr().out
