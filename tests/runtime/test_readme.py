"""The README's Python and its shell commands run as they stand."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen.cli import run

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks_of(text: str) -> list[str]:
    """The Python in a Markdown text."""
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def run_page(page: str, least: int, names: dict, *, without: str = "", instead: Sequence[tuple[str, str]] = ()) -> None:
    """Run the Python blocks of a page, so many at least, one after the other.

    `without`: those that say this are left out; `instead`: what is replaced in them, and by what.
    """
    blocks = [block for block in blocks_of((ROOT / page).read_text(encoding="utf-8")) if not without or without not in block]
    assert len(blocks) >= least
    for block in blocks:
        for before, after in (('"DIR"', "None"), *instead):
            block = block.replace(before, after)  # noqa: PLW2901 - the same block
        exec(compile(block, page, "exec"), names)  # noqa: S102 - our own documentation


def test_every_python_block_of_the_readme_runs(capsys) -> None:
    run_page("README.md", 2, {})
    out = capsys.readouterr().out
    assert len(out) > 200
    assert re.search(r"\n\d+\.\d\n", out), "the number of the first block has a line of its own"


STAND_INS = {
    # A virtual environment is a real one; its pip notes what it is asked for, and brings our command.
    "python3": """
        [ "$1 $2" = "-m venv" ] || exec {python} "$@"
        {python} -m venv --without-pip "$3" && rm "$3/bin/python" "$3/bin/python3"
        for name in pip python; do cp {here}/$name-inside "$3/bin/$name"; done
    """,
    "pip-inside": """
        echo "pip $*" >> {log}; cp {here}/command "$(dirname "$0")/onnx-textgen"
    """,
    "python-inside": """
        [ "$1 $2" = "-m tests" ] || exec {python} "$@"
        echo "python $*" >> {log}
    """,
    # Nobody fetches or exports a model here: one that is there takes its place. A server would never end: it explains itself.
    "command": """
        [ "$1" != serve ] || exec {python} -m onnx_textgen.cli serve -h
        [ "$2" != smollm2 ] || {{ mkdir -p {cache} && cp -r {story} {cache}/smollm2; }}
        [ "$1" = export ] || exec {python} -m onnx_textgen.cli "$@"
        grep -q 'pip install .*export' {log} && echo "export $2" >> {log} && cp -r {story} "$4"
    """,
    "pip": "echo 'no virtual environment is active' >&2; exit 1",
    "onnx-textgen": "echo 'no virtual environment is active' >&2; exit 1",
}


@pytest.mark.skipif(sys.platform == "win32", reason="the commands are for a Unix shell")
def test_all_shell_commands_of_the_readme_run_one_after_the_other_in_a_fresh_shell(tmp_path, story) -> None:
    stand_ins, log, work = tmp_path / "bin", tmp_path / "log", tmp_path / "checkout"
    stand_ins.mkdir()
    work.mkdir()
    names = {"python": sys.executable, "here": stand_ins, "log": log, "story": story.folder, "cache": tmp_path / "cache"}
    for name, script in STAND_INS.items():
        (stand_ins / name).write_text(f"#!/bin/sh\n{script.format(**{k: shlex.quote(str(v)) for k, v in names.items()})}\n")
        (stand_ins / name).chmod(0o755)
    blocks = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) >= 5
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONHOME")}
    environment |= {"PATH": f"{stand_ins}:/usr/bin:/bin", "HF_HUB_CACHE": str(tmp_path / "none"), "ONNX_TEXTGEN_THREADS": "1"}
    environment |= {"ONNX_TEXTGEN_CACHE": str(tmp_path / "cache")}
    environment |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    shell = ["bash", "-e", "-c", "\n".join(blocks)]
    done = subprocess.run(
        shell, cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n") > 5
    noted = log.read_text().splitlines()
    assert "python -m tests" in noted
    assert any(line.startswith("export ") for line in noted)
    large = [index for index, line in enumerate(noted) if re.search(r"\[(export|dev)\]", line)]
    assert large
    assert all("download.pytorch.org/whl/cpu" in noted[index - 1] for index in large), "pip takes gigabytes of CUDA otherwise"


def test_commands_within_the_text_of_the_readme_need_the_activated_shell_alone() -> None:
    assert ".venv/bin/pip" not in README
    assert ".venv/bin/onnx-textgen" not in README


def test_every_python_block_about_generating_runs(story, tmp_path) -> None:
    pytest.importorskip("llguidance", reason="one of the blocks is about rules")
    pytest.importorskip("onnx", reason="it writes the package with adapters")
    from support.adapted_story import make_adapted_story  # noqa: PLC0415 - needs onnx

    text = "Once upon a time there was a little dog. It ran and ran. "
    names = {"onnx_textgen": onnx_textgen, "model": story, "long_prompt": text * 5, "long_text": text * 50}
    names |= {"large": story.folder, "small": story.folder, "digit_ids": [7, 8]}
    names["with_adapters"] = make_adapted_story(tmp_path / "adapted", "french", "legal")
    run_page("docs/generating.md", 4, names, without="export(")


def test_every_python_block_about_sessions_runs(story, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    chat_model = onnx_textgen.Model(
        story.folder, story.manifest, story.graph, chat_template="{% for m in messages %}{{ m.content }} {% endfor %}"
    )
    names = {"onnx_textgen": onnx_textgen, "document": "Once upon a time there was a dog. " * 9, "chat_model": chat_model}
    run_page("docs/sessions.md", 3, names)
    assert names["again"].token_ids == names["session"].token_ids


def test_every_line_of_python_among_the_answers_to_questions_runs(story: onnx_textgen.Model) -> None:
    pytest.importorskip("llguidance", reason="one of the lines is about a schema")
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    names = {"onnx_textgen": onnx_textgen}
    names["model"] = onnx_textgen.Model(story.folder, story.manifest, story.graph, chat_template=template)
    lines = re.findall(r"`((?:model|onnx_textgen)\.\w+\([^`]*)`", (ROOT / "docs" / "questions.md").read_text(encoding="utf-8"))
    assert len(lines) >= 12
    for line in lines:
        assert eval(line, names)  # noqa: S307 - our own documentation


def test_every_python_block_about_tools_runs(story, capsys) -> None:
    pytest.importorskip("llguidance")
    template = (
        "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ '\\n' if not loop.first }}<tool_call>\n{{ c.function | tojson }}\n</tool_call>"
        "{% endfor %} {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    names = {
        "onnx_textgen": onnx_textgen,
        "chat_model": onnx_textgen.Model(story.folder, story.manifest, story.graph, chat_template=template),
    }
    # The model of stories may write a city, or calls, without an end: at which seeds depends on how the processor rounds.
    short = ("city: str", 'city: Literal["Oslo", "Rome"]'), ("seed=1", "seed=1, parallel_tool_calls=False")
    run_page("docs/tools.md", 3, names, instead=short)
    assert capsys.readouterr().out.startswith("get_weather {'city': ")
    assert [each["role"] for each in names["session"].messages] == ["user", "assistant"]


def test_the_first_command_of_the_readme_prints_what_is_shown_below_it(capsys) -> None:
    command, shown = re.search(r"```console\n\$ onnx-textgen ([^\n]*)\n(.*?)```", README, re.DOTALL).groups()
    assert run(shlex.split(command)) == 0
    printed = capsys.readouterr()
    for pattern in (r"prompt \d+ tokens", r"seed \d+"):  # another processor may choose another token, where two are nearly equal
        assert re.search(pattern, printed.err)[0] == re.search(pattern, shown)[0]
    assert printed.out.startswith(", there was a little")


@pytest.mark.parametrize("page", ["how_it_works.md", "in_an_app.md"])
def test_every_python_block_of_a_page_runs(page: str) -> None:
    run_page(f"docs/{page}", 5, {})


def test_every_python_block_about_engines_runs(capsys) -> None:
    pytest.importorskip("openvino", reason='the second engine needs pip install "onnx-textgen[openvino]"')
    names: dict = {}
    run_page("docs/engines.md", 1, names)
    assert names["model"].device == "openvino"
    assert capsys.readouterr().out.endswith("\n")


def test_the_page_of_options_has_every_example_and_each_still_writes(story) -> None:
    pytest.importorskip("llguidance", reason="one of the examples is about rules")
    made = runpy.run_path(str(ROOT / "docs" / "make_options.py"))
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    for prompt, examples in made["PAGES"].items():
        for line in made["table"](story, prompt, examples):
            assert line.rsplit(" | ", 1)[0] in page, "python docs/make_options.py writes it anew"


def test_the_python_of_the_page_on_text_encoders_runs(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from support.text_encoder_package import write_package  # noqa: PLC0415

    letters = write_package(tmp_path / "letters")
    run_page("docs/text_encoders.md", 1, {"onnx_textgen": onnx_textgen}, instead=[('"minilm"', repr(str(letters)))])
