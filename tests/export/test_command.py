"""`onnx-textgen export` as a user runs it, and what importing the exporter does."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onnx_textgen.cli import run
from onnx_textgen_export import cli
from support.hub_server import TOKEN, hub_server, use_hub

MODULE = """
import torch
from onnx_textgen_export import DecoderConfig, TinyTransformer

def build():
    torch.manual_seed(0)
    return TinyTransformer(DecoderConfig(vocab_size=60, width=32, layers=1, context_length=40))

number = 7
"""


@pytest.fixture(autouse=True)
def keep_signal_handlers():
    """The command listens for the signal that ends it; the test run does not want that."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MODULE)
    return f"{tmp_path / 'mine.py'}:build"


def test_an_export_prints_the_certificate_and_its_stages_and_the_package_generates_and_verifies(source, tmp_path, capsys) -> None:
    assert run(["export", source, "--out", str(tmp_path / "package"), "--name", "mine", "--origin", "a test"]) == 0
    out, err = capsys.readouterr()
    assert [scenario for scenario in ("whole prompt", "token by token", "ragged batch", "long text") if scenario not in out] == []
    assert "proved to 40 tokens" in " ".join(out.split())
    stages = [line.split("  ")[0].split(":")[0].strip() for line in err.splitlines()]
    assert stages == ["load", "forecast", "trace", "write", "compare with PyTorch"]
    manifest = json.loads((tmp_path / "package" / "manifest.json").read_text())
    assert (manifest["name"], manifest["source"]) == ("mine", "a test")
    assert run(["verify", str(tmp_path / "package")]) == 0
    assert run(["generate", "--model", str(tmp_path / "package"), "--token-ids", "1,2", "--max-new-tokens", "3"]) == 0


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's
def test_an_export_can_be_pushed_and_asks_before_the_work_whether_it_may(source, tmp_path, capsys, monkeypatch) -> None:
    with hub_server() as hub:
        use_hub(monkeypatch, hub.url, tmp_path / "hub")
        monkeypatch.setenv("HF_TOKEN", "hf_other")
        assert run(["export", source, "--out", str(tmp_path / "package"), "--push", "me/mine"]) == 1
        assert "the hub does not know you" in capsys.readouterr().err
        assert not (tmp_path / "package").exists()
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        assert run(["export", source, "--out", str(tmp_path / "package"), "--push", "me/mine"]) == 0
        assert f"{hub.url}/me/mine; run it anywhere with:" in capsys.readouterr().err
        files = hub.repositories["me/mine"].files
        file = str(tmp_path / "mine.recipe")
        monkeypatch.setattr(cli, "write_recipe", lambda *_: None)  # a module of one's own has none
        arguments = ["export", source, "--out", str(tmp_path / "package"), "--recipe", file, "--push", "me/again", "--private"]
        assert run(arguments) == 0, "of a folder that is there"
        assert hub.repositories["me/again"].private
    assert files["manifest.json"] == (tmp_path / "package" / "manifest.json").read_bytes()
    assert hub.repositories["me/again"].files["manifest.json"] == files["manifest.json"]


def test_private_is_of_a_repository(source, tmp_path, capsys) -> None:
    assert run(["export", source, "--out", str(tmp_path / "package"), "--private"]) == 2
    assert "add --push OWNER/NAME" in capsys.readouterr().err


@pytest.mark.parametrize(
    "case",
    [
        ("mine.py:nothing", 2, "defines no nothing"),
        ("mine.py:number", 1, "TypeError"),
        ("absent.py:build", 2, "cannot import"),
        ("absent", 1, "is not a folder"),
    ],
)
def test_a_source_that_is_none_is_one_line_and_leaves_nothing(source, tmp_path, capsys, case) -> None:
    name, code, expected = case
    before = sorted(path.name for path in tmp_path.iterdir())
    assert run(["export", str(tmp_path / name), "--out", str(tmp_path / "package")]) == code
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert expected in errors[0]
    assert [name for name in sorted(path.name for path in tmp_path.iterdir()) if name != "__pycache__"] == before


@pytest.mark.parametrize("option", [["--symmetric"], ["--quantizer", "rtn"], ["--head-bits", "8"]], ids=" ".join)
def test_an_option_of_quantised_weights_is_refused_without_them_as_it_was_written(tmp_path, capsys, option) -> None:
    assert run(["export", "absent", "--out", str(tmp_path / "package"), *option]) == 2
    assert f"as-stored keeps the form that the source has, so {option[0]} does nothing" in capsys.readouterr().err
    assert run(["export", "absent", "--out", str(tmp_path / "package"), "--precision", "fp32", *option]) == 2
    assert f"fp32 is not quantised, so {option[0]} does nothing" in capsys.readouterr().err


def test_exact_products_are_refused_where_none_are_quantised(tmp_path, capsys) -> None:
    assert run(["export", "absent", "--out", str(tmp_path / "package"), "--precision", "fp32", "--exact"]) == 2
    assert "fp32 is not quantised, so --exact does nothing" in capsys.readouterr().err


def test_an_export_that_is_told_to_end_leaves_nothing(source, tmp_path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    command = [sys.executable, "-m", "onnx_textgen.cli", "export", source, "--out", str(folder / "package")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("load")  # loaded: now it traces
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert list(folder.iterdir()) == []


def test_importing_the_exporter_switches_telemetry_off_before_onnx_runtime_is_imported() -> None:
    code = """
import os, sys
from importlib.abc import MetaPathFinder
seen = []
class Watch(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            seen.append(os.environ.get("ORT_DISABLE_TELEMETRY"))
sys.meta_path.insert(0, Watch())
from onnx_textgen_export import export
print(seen)
"""
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "['1']\n"
