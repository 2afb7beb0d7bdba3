"""The base install stands alone: nothing of the extras is imported, nothing is printed, nothing is reported."""

import subprocess
import sys
from pathlib import Path

import pytest

import onnx_textgen

FORBIDDEN = ("torch", "onnx", "transformers", "gradio", "safetensors", "openvino", "onnx_textgen_export", "onnx_textgen_demo")

# Importing any of these fails as if it were not installed.
FORBID = """
import sys
from importlib.abc import MetaPathFinder
class Forbid(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {!r}:
            raise ModuleNotFoundError("forbidden: " + name, name=name)
sys.meta_path.insert(0, Forbid())
"""


def fresh_python(code: str, *, forbidden: tuple[str, ...] = FORBIDDEN, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter of its own that has no extras."""
    command = [sys.executable, "-W", "error", "-c", FORBID.format(forbidden) + code]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env={"PATH": "", **environment})


def all_modules() -> str:
    return (
        "import importlib, pkgutil, onnx_textgen\n"
        "for module in pkgutil.walk_packages(onnx_textgen.__path__, 'onnx_textgen.'):\n"
        "    if not module.name.endswith('__main__') and '.hook-' not in module.name:\n"  # PyInstaller alone imports hooks
        "        importlib.import_module(module.name)\n"
    )


def test_the_forbidden_modules_are_really_kept_out():
    assert "forbidden: onnx" in fresh_python("import onnx").stderr


@pytest.mark.parametrize(
    "code", ["import onnx_textgen", "import onnx_textgen.cli", all_modules()], ids=["package", "cli", "every module"]
)
def test_the_runtime_imports_without_the_extras_and_prints_nothing(code):
    done = fresh_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_runtime_switches_telemetry_off_before_onnx_runtime_is_imported():
    code = """
import os, sys
seen = []
class Watch(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            seen.append(os.environ.get("ORT_DISABLE_TELEMETRY"))
sys.meta_path.insert(0, Watch())
import onnx_textgen.backends.onnxruntime_session
print(seen)
"""
    done = fresh_python(code)
    assert (done.stdout, done.stderr) == ("['1']\n", "")


def test_a_user_may_ask_for_telemetry():
    done = fresh_python(
        "import os, onnx_textgen.backends.onnxruntime_session; print(os.environ['ORT_DISABLE_TELEMETRY'])",
        ORT_DISABLE_TELEMETRY="0",
    )
    assert done.stdout == "0\n"


def test_the_command_line_leaves_the_model_code_alone_until_a_command_needs_it():
    code = "import onnx_textgen.cli, sys; print([m for m in ('onnxruntime', 'tokenizers', 'numpy', 'jinja2') if m in sys.modules])"
    assert fresh_python(code).stdout == "[]\n"


def test_a_text_imports_nothing_that_only_chats_need():
    code = """
import onnx_textgen
print(onnx_textgen.load().generate("Once upon a time", max_new_tokens=2).finish_reason)
print([name for name in sys.modules if name.startswith("onnx_textgen.chat")])
"""
    done = fresh_python(code, forbidden=("regex", "jinja2"))
    assert (done.stdout, done.stderr) == ("length\n[]\n", "")


def test_the_doctor_comes_to_a_machine_where_onnx_runtime_cannot_be_imported():
    done = fresh_python("import onnx_textgen.cli as c; sys.exit(c.run(['doctor']))", forbidden=("onnxruntime",))
    assert done.returncode == 1
    assert "problem: ONNX Runtime cannot be imported\n    fix: pip install --force-reinstall onnxruntime\n" in done.stdout


def test_a_room_has_twelve_modules_at_most():
    rooms = [each for each in Path(onnx_textgen.__file__).parent.rglob("*") if (each / "__init__.py").is_file()]
    assert len(rooms) >= 20
    assert {room.name: count for room in rooms if (count := len([*room.glob("[!_]*.py")])) > 12} == {}
