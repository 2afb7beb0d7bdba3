"""What the environment says in place of options: model, device, threads, colours; and what a shell asks in order to complete."""

import os
import subprocess
import sys

import pytest

import onnx_textgen
from onnx_textgen.cli import run
from support.cli_model import CharacterModel

VARIABLES = ("ONNX_TEXTGEN_MODEL", "ONNX_TEXTGEN_DEVICE", "ONNX_TEXTGEN_THREADS")


@pytest.fixture
def loaded(monkeypatch):
    """What `load` was asked for."""
    seen = []

    def load(package, *, device, threads, **others):
        seen.append((package, device, threads))
        return CharacterModel()

    monkeypatch.setattr(onnx_textgen, "load", load)
    return seen


def test_variables_stand_in_for_options_and_options_win(loaded, monkeypatch):
    for name, value in zip(VARIABLES, ("tiny-transformer", "cpu", "2"), strict=True):
        monkeypatch.setenv(name, value)
    assert run(["generate", "a"]) == 0
    assert run(["generate", "a", "--model", "story", "--threads", "1"]) == 0
    assert loaded == [("tiny-transformer", "cpu", 2), ("story", "cpu", 1)]


def test_an_empty_variable_counts_as_none(loaded, monkeypatch):
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    assert run(["generate", "a"]) == 0
    assert loaded == [(None, "auto", None)]


def test_the_variable_of_the_model_is_no_second_model_beside_an_argument(monkeypatch, capsys):
    monkeypatch.setenv(VARIABLES[0], "tiny-transformer")
    assert run(["info", "story"]) == 0
    assert run(["info"]) == 0
    out = [line.split()[-1] for line in capsys.readouterr().out.splitlines() if line.startswith("name ")]
    assert out == ["story", "tiny-transformer"]


def test_a_variable_of_the_wrong_kind_is_named_in_one_line(loaded, monkeypatch, capsys):
    monkeypatch.setenv("ONNX_TEXTGEN_THREADS", "many")
    assert run(["generate", "a"]) == 2
    err = capsys.readouterr().err
    assert (err.count("\n"), "--threads" in err) == (1, True)


@pytest.fixture
def own_environment(monkeypatch):
    """`--color` sets variables, which are those of before again after the test."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.setenv(name, "")


@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize(("wanted", "coloured"), [("always", True), ("never", False), ("auto", False)])
def test_colours_are_as_asked_and_off_in_a_pipe(loaded, wanted, coloured, capsys, monkeypatch):
    assert run(["--color", wanted, "generate", "a"]) == 0
    assert ("\x1b" in capsys.readouterr().err) is coloured
    monkeypatch.setenv("ONNX_TEXTGEN_COLOR", wanted)
    assert run(["generate", "a"]) == 0
    assert ("\x1b" in capsys.readouterr().err) is coloured


def completions(line: str) -> list[str]:
    environment = os.environ | {"_ONNX_TEXTGEN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    command = [sys.executable, "-W", "error", "-m", "onnx_textgen.cli"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=60)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("onnx-textgen gen", ["generate"]),
        ("onnx-textgen generate --show", ["--show-tokens"]),
        ("onnx-textgen generate --model st", ["story"]),
        ("onnx-textgen info tin", ["tiny-transformer"]),
        ("onnx-textgen --color n", ["never"]),
    ],
)
def test_a_shell_completes_commands_options_and_models(line, expected):
    assert completions(line) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_can_be_printed(shell):
    command = [sys.executable, "-m", "onnx_textgen.cli", "--show-completion", shell]
    chosen = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # else it is that of the tests
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=chosen)
    assert "_ONNX_TEXTGEN_COMPLETE" in done.stdout
