"""Commands of pip that fit where the installation came from, by what pip itself records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from onnx_textgen import installation

CASES = {
    "index": (None, 'pip install "onnx-textgen[export]"', "pip install -U onnx-textgen"),
    "editable": (
        {"url": "file:///PLACE/my%20text", "dir_info": {"editable": True}},
        'pip install -e "/PLACE/my text[export]"',
        'git -C "/PLACE/my text" pull',
    ),
    "checkout": (
        {"url": "file:///PLACE/my%20text", "dir_info": {}},
        'pip install "/PLACE/my text[export]"',
        'git -C "/PLACE/my text" pull && pip install "/PLACE/my text"',
    ),
    "wheel": (
        {"url": "file:///PLACE/onnx_textgen-0.3.0-py3-none-any.whl", "archive_info": {}},
        'pip install "/PLACE/onnx_textgen-0.3.0-py3-none-any.whl[export]"',
        "pip install -U onnx-textgen",
    ),
    "gone": (
        {"url": "file:///PLACE/gone", "dir_info": {}},
        'pip install "onnx-textgen[export]"',
        "pip install -U onnx-textgen",
    ),
    "repository": (
        {"url": "https://example.org/textgen.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
        'pip install "onnx-textgen[export] @ git+https://example.org/textgen.git@abc"',
        'pip install -U "onnx-textgen @ git+https://example.org/textgen.git"',
    ),
    "repository at hand": (
        {"url": "file:///PLACE/my%20text", "vcs_info": {"vcs": "git", "commit_id": "abc"}, "subdirectory": "python"},
        'pip install "onnx-textgen[export] @ git+file:///PLACE/my%20text@abc#subdirectory=python"',
        'pip install -U "onnx-textgen @ git+file:///PLACE/my%20text#subdirectory=python"',
    ),
    "address": (
        {"url": "https://example.org/a.whl", "archive_info": {}},
        'pip install "onnx-textgen[export] @ https://example.org/a.whl"',
        "pip install -U onnx-textgen",
    ),
}


class Distribution:
    def __init__(self, text: str | None) -> None:
        self.text = text

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.text


@pytest.mark.skipif(os.name == "nt", reason="paths of POSIX")
@pytest.mark.parametrize("name", CASES)
def test_commands_fit_what_pip_recorded(tmp_path, monkeypatch, name):
    (tmp_path / "my text").mkdir()
    (tmp_path / "onnx_textgen-0.3.0-py3-none-any.whl").touch()
    record, add, upgrade = json.loads(json.dumps(CASES[name]).replace("/PLACE", tmp_path.as_posix()))
    text = None if record is None else json.dumps(record)
    monkeypatch.setattr(metadata, "distribution", lambda _: Distribution(text))
    assert (installation.add_extra("export"), installation.upgrade()) == (add, upgrade)
    given = add.partition("install ")[2].removeprefix("-e ").strip('"')
    if not given.startswith("/"):
        assert Requirement(given).extras == {"export"}, "pip can read it"


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"url": 5}'])
def test_a_record_that_says_nothing_is_that_of_the_index(monkeypatch, text):
    monkeypatch.setattr(metadata, "distribution", lambda _: Distribution(text))
    assert installation.reinstall() == "pip install --force-reinstall --no-deps onnx-textgen"


def test_an_app_without_metadata_has_the_command_of_the_index(monkeypatch):
    def missing(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "distribution", missing)
    assert installation.add_extra("serve") == 'pip install "onnx-textgen[serve]"'


@pytest.mark.slow
def test_pips_own_record_of_a_wheel_and_of_a_checkout_is_read(tmp_path: Path):
    """Each in an environment of its own: a project of this name with these sources."""
    project = tmp_path / "a project"
    (project / "onnx_textgen").mkdir(parents=True)
    source = Path(installation.__file__)
    (project / "onnx_textgen" / "installation.py").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "onnx-textgen"\nversion = "1"\n[tool.hatch.build.targets.wheel]\npackages = ["onnx_textgen"]\n'
    )
    wheel = made(project, tmp_path)
    code = "from onnx_textgen.installation import add_extra; print(add_extra('x'))"
    for number, (given, wanted) in enumerate(
        (
            ([str(wheel)], f'pip install "{wheel}[x]"'),
            ([str(project)], f'pip install "{project}[x]"'),
            (["-e", str(project)], f'pip install -e "{project}[x]"'),
        )
    ):
        environment = tmp_path / str(number)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
        python = str(environment / ("Scripts" if os.name == "nt" else "bin") / "python")
        subprocess.run([*PIP, "--python", python, "install", *WITHOUT_MORE, *given], check=True, env=CLEAN)
        run = subprocess.run([python, "-I", "-c", code], check=True, capture_output=True, text=True)
        assert run.stdout.strip() == wanted


PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
WITHOUT_MORE = ["--no-deps", "--no-cache-dir"]
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def made(project: Path, folder: Path) -> Path:
    """The wheel of a project."""
    subprocess.run([*PIP, "wheel", *WITHOUT_MORE, str(project), "-w", str(folder)], check=True, env=CLEAN)
    (wheel,) = folder.glob("*.whl")
    return wheel
