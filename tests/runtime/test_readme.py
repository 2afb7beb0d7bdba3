"""The README's Python runs as it stands, and its commands exist."""

import re
import runpy
from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen.cli import run

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks_of(text: str) -> list[str]:
    """The Python in a Markdown text."""
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def test_every_python_block_of_the_readme_runs(capsys) -> None:
    blocks = blocks_of(README)
    assert len(blocks) >= 2
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)  # noqa: S102 - our own documentation
    assert len(capsys.readouterr().out) > 200


def test_every_python_block_about_generating_runs(story) -> None:
    pytest.importorskip("llguidance", reason="one of the blocks is about rules")
    blocks = blocks_of((ROOT / "docs" / "generating.md").read_text(encoding="utf-8"))
    text = "Once upon a time there was a little dog. It ran and ran. "
    names = {"onnx_textgen": onnx_textgen, "model": story, "long_prompt": text * 5, "long_text": text * 50}
    names |= {"large": story.folder, "small": story.folder}
    ran = [block for block in blocks if "export(" not in block]
    for block in ran:
        exec(compile(block, "generating.md", "exec"), names)  # noqa: S102 - our own documentation
    assert len(ran) == len(blocks) - 1 >= 4


def test_every_python_block_about_sessions_runs(story, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    chat_model = onnx_textgen.Model(
        story.folder, story.manifest, story.graph, chat_template="{% for m in messages %}{{ m.content }} {% endfor %}"
    )
    names = {"onnx_textgen": onnx_textgen, "document": "Once upon a time there was a dog. " * 9, "chat_model": chat_model}
    blocks = blocks_of((ROOT / "docs" / "sessions.md").read_text(encoding="utf-8"))
    for block in blocks:
        exec(compile(block.replace('"DIR"', "None"), "sessions.md", "exec"), names)  # noqa: S102 - our own documentation
    assert len(blocks) >= 3
    assert names["again"].token_ids == names["session"].token_ids


def test_every_command_that_the_readme_names_explains_itself(capsys) -> None:
    for command in sorted(set(re.findall(r"onnx-textgen ([a-z]+)", README)) - {"demo", "export"}):
        assert run([command, "-h"]) == 0
        assert command in capsys.readouterr().out


@pytest.mark.parametrize("page", ["how_it_works.md", "in_an_app.md"])
def test_every_python_block_of_a_page_runs(page: str) -> None:
    names: dict = {}
    blocks = blocks_of((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert len(blocks) >= 5
    for block in blocks:
        exec(compile(block, page, "exec"), names)  # noqa: S102 - our own documentation


def test_every_python_block_about_engines_runs(capsys) -> None:
    pytest.importorskip("openvino", reason='the second engine needs pip install "onnx-textgen[openvino]"')
    names: dict = {}
    for block in blocks_of((ROOT / "docs" / "engines.md").read_text(encoding="utf-8")):
        exec(compile(block, "engines.md", "exec"), names)  # noqa: S102 - our own documentation
    assert names["model"].device == "openvino"
    assert capsys.readouterr().out.endswith("\n")


def test_the_page_of_options_has_every_example_and_each_still_writes(story) -> None:
    pytest.importorskip("llguidance", reason="one of the examples is about rules")
    made = runpy.run_path(str(ROOT / "docs" / "make_options.py"))
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    for prompt, examples in made["PAGES"].items():
        for line in made["table"](story, prompt, examples):
            assert line.rsplit(" | ", 1)[0] in page, "python docs/make_options.py writes it anew"
