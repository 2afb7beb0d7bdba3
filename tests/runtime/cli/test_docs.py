"""Every command in docs/command_line.md runs, and ends as the page shows it; those in docs/questions.md run, or are parsed."""

import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import typer

from onnx_textgen.cli import app, run
from onnx_textgen.cli.extensions import GROUP
from onnx_textgen.package.locate import find_package

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "command_line.md").read_text(encoding="utf-8")
QUESTIONS = (DOCS / "questions.md").read_text(encoding="utf-8")
PARSED = re.compile("onnx-textgen (adapter|demo|export|pull .|serve|site)|smollm2|--device")
"""Commands that need an extra, a download, another device or minutes, or that would never end."""


def transcripts() -> list[tuple[str, str]]:
    """Each command of the page, and what stands below it."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL)
    return [
        (command, shown) for block in blocks for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", block, flags=re.M)
    ]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with what the page speaks of."""
    shutil.copytree(find_package("story"), tmp_path / "my-model")
    (tmp_path / "prompt.txt").write_text("The dog ran to the park. It saw a", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name, value in {"HF_HUB_CACHE": str(tmp_path / "none"), "ONNX_TEXTGEN_THREADS": "1", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def in_a_shell(command: str) -> tuple[int, str]:
    """The exit code of a line with a pipe or a variable in it, and all that it printed."""
    if sys.platform == "win32":
        pytest.skip("the line is one for a Unix shell")
    function = f'onnx-textgen() {{ {shlex.quote(sys.executable)} -m onnx_textgen.cli "$@"; }}; set -o pipefail; '
    done = subprocess.run(["bash", "-c", function + command], capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def words(text: str) -> list[list[str]]:
    """Lines by their words."""
    return [line.split() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize(("command", "shown"), transcripts(), ids=[command for command, _ in transcripts()])
def test_a_command_of_the_page_ends_as_it_shows(command, shown, here, capsys, monkeypatch):
    typed = iter(re.findall("^> (.*)", shown, flags=re.MULTILINE))
    monkeypatch.setattr("builtins.input", lambda prompt="": next(typed))
    if "|" in command or not command.startswith("onnx-textgen "):
        code, printed = in_a_shell(command)
    else:
        code = run(shlex.split(command)[1:])
        printed = "".join(capsys.readouterr())
    is_error = shown.startswith("error: ")
    assert (code != 0) is is_error or "doctor" in command, printed  # which finds on this machine what it finds
    assert printed
    is_our_error = is_error and not re.search("/home/me|No such option", shown)  # whose words are typer's
    if "list" in command or "info " in command or is_our_error:
        assert words(printed) == words(shown)


def test_the_page_shows_every_command_and_every_line_of_a_chat():
    commands = {line.split("onnx-textgen ")[1].split()[0] for line, _ in transcripts()}
    assert commands == {"generate", "chat", "list", "pull", "remove", "inspect", "score", "info", "verify", "bench", "doctor"}
    from onnx_textgen.cli.terminal.chat_session import COMMANDS  # noqa: PLC0415

    assert [name for name in COMMANDS if f"`{name}" not in PAGE] == []


def answered() -> list[str]:
    """Each command within the answers."""
    return [" ".join(found.split()) for found in re.findall("`(onnx-textgen [^`]+)`", QUESTIONS)]


@pytest.mark.parametrize("command", [each for each in answered() if not PARSED.search(each)])
def test_a_command_of_an_answer_runs(command, here, capsys, monkeypatch):
    typed = iter(["Hi"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(typed))
    assert run(shlex.split(command)[1:]) == 0, "".join(capsys.readouterr())
    assert capsys.readouterr().out


@pytest.mark.parametrize("command", [each for each in answered() if PARSED.search(each)])
def test_a_command_of_an_answer_that_cannot_run_here_is_one_that_the_command_line_takes(command, here):
    name, *given = shlex.split(command)[1:]
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    extra = {"adapter": "torch", "demo": "gradio", "export": "torch", "serve": "fastapi"}
    if found:
        pytest.importorskip(extra[name])
    parser = typer.main.get_command(found[0].load()) if found else typer.main.get_command(app.app).commands[name]
    with parser.make_context(name, given) as taken:
        assert taken.params


def test_each_question_has_a_short_answer_with_a_link():
    answers = dict(re.findall(r"^### (.*\?)\n((?:.+\n)+)", QUESTIONS, flags=re.MULTILINE))
    assert len(answers) == len(re.findall("^###", QUESTIONS, flags=re.MULTILINE)) >= 32
    assert [question for question, answer in answers.items() if answer.count("\n") > 4 or "](" not in answer] == []
    assert len(answered()) >= 32
    assert len(QUESTIONS.split()) < 2000
