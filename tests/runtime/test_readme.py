"""The README's Python runs as it stands, and its commands exist."""

import re
from pathlib import Path

from onnx_textgen.cli import run

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def test_every_python_block_of_the_readme_runs(capsys) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) >= 2
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)  # noqa: S102 - our own documentation
    assert len(capsys.readouterr().out) > 200


def test_every_command_that_the_readme_names_explains_itself(capsys) -> None:
    for command in sorted(set(re.findall(r"onnx-textgen ([a-z]+)", README)) - {"demo", "export"}):
        assert run([command, "-h"]) == 0
        assert command in capsys.readouterr().out
