"""PyInstaller finds our hook by its entry point, and the hook names the data files of the library."""

import runpy
import sys
import tomllib
import types
from importlib.metadata import EntryPoint
from pathlib import Path

import onnx_textgen


def test_the_hook_packs_what_is_no_code(monkeypatch) -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (folder,) = EntryPoint("hook-dirs", project["entry-points"]["pyinstaller40"]["hook-dirs"], "pyinstaller40").load()()
    hooks = types.ModuleType("PyInstaller.utils.hooks")
    hooks.collect_data_files = lambda package: [(package, "of it all")]
    for name in ("PyInstaller", "PyInstaller.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, hooks.__name__, hooks)
    (hook,) = Path(folder).glob("hook-*.py")
    assert hook.name == f"hook-{onnx_textgen.__name__}.py"  # by which PyInstaller knows whose it is
    assert runpy.run_path(str(hook))["datas"] == [("onnx_textgen", "of it all")]
