"""examples/node: a package in Node without this project's code, and what docs/in_an_app.md shows of JavaScript."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from onnx_textgen.text.tokenizer import TextTokenizer
from support.node import NODE, ROOT, WEB, installed_packages
from support.processor import HAS_VNNI

EXAMPLE = ROOT / "examples" / "node"


def run(folder: Path, *command: str) -> str:
    """What a program of Node prints."""
    packages = installed_packages()
    assert NODE is not None
    if not (folder / "node_modules").exists():
        (folder / "node_modules").symlink_to(packages, target_is_directory=True)
    done = subprocess.run([NODE, *command], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["story", "tiny-transformer"])
def test_the_program_writes_the_golden_continuations(tmp_path: Path, name: str) -> None:
    package = ROOT / "artifacts" / name
    manifest = json.loads((package / "manifest.json").read_text())
    tokenizer = TextTokenizer((package / "tokenizer.json").read_text(encoding="utf-8"), eos_ids=manifest["eos_ids"])
    shutil.copy(EXAMPLE / "generate.mjs", tmp_path)
    prompts = [tokenizer.decode(golden["prompt_ids"][1:]) for golden in manifest["golden"]]
    written = [golden for golden, prompt in zip(manifest["golden"], prompts, strict=True) if prompt]
    assert len(written) == 2
    if name == "story" and not HAS_VNNI:
        pytest.skip("without VNNI, 8-bit products round in another way than where it was made")
    for golden, prompt in zip(written, prompts[-2:], strict=True):
        text = tokenizer.decode([*golden["prompt_ids"][1:], *golden["new_ids"]])
        assert run(tmp_path, "generate.mjs", str(package), prompt, str(len(golden["new_ids"]))) == text + "\n"


def test_its_packages_have_the_versions_that_are_tested() -> None:
    named = json.loads((WEB / "package.json").read_text())
    tested = named["dependencies"] | named["devDependencies"]
    wanted = json.loads((EXAMPLE / "package.json").read_text())["dependencies"]
    assert wanted == {name: tested[name] for name in wanted}


def test_the_program_is_short() -> None:
    lines = (EXAMPLE / "generate.mjs").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line and not line.startswith("//")]) <= 30


def test_what_the_docs_show_runs(tmp_path: Path, web: Path) -> None:
    page = (ROOT / "docs" / "in_an_app.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```js\n(.*?)```", page, re.DOTALL)
    folder = Path(shutil.copytree(web, tmp_path / "web", symlinks=True))
    (folder / "docs.mjs").write_text(block.replace('"DIR"', json.dumps(str(ROOT / "artifacts" / "story"))), encoding="utf-8")
    lines = run(folder, "docs.mjs").splitlines()
    assert lines[0].startswith("Once upon a time") and len(lines[0]) > 40
    assert lines[-1] == "3 of 3 golden runs are right"
