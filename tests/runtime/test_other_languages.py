"""What docs/runtimes.md says about ORT format, plain ONNX Runtime and other languages."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

import onnx_textgen
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.reading import read_manifest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "runtimes.md").read_text(encoding="utf-8")


def test_the_recipe_of_ort_format_writes_the_golden_continuation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx", reason="the converter needs it")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(find_package("story"), "my-model")
    (commands,) = re.findall(r"```bash\n(cp -r .*?)```", PAGE, flags=re.DOTALL)
    function = f'python() {{ "{sys.executable}" "$@"; }}; set -e\n'
    subprocess.run(["bash", "-c", function + commands], check=True, capture_output=True, timeout=300)
    assert (tmp_path / "my-ort-model" / "model.required_operators.config").is_file()
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(block, "runtimes.md", "exec"), {"__name__": "page"})  # noqa: S102 - our own documentation
    assert capsys.readouterr().out.strip() == str(list(read_manifest(find_package("story")).golden[0].new_ids))


@pytest.mark.usefixtures("same_rounding")
@pytest.mark.skipif(shutil.which("rustc") is None, reason="the program is in Rust")
def test_the_program_in_rust_writes_what_this_runtime_writes(tmp_path: Path) -> None:
    genai = pytest.importorskip("onnxruntime_genai", reason="the program calls its library")
    libraries, capi = Path(genai.__file__).parent, Path(onnxruntime.__file__).parent / "capi"
    if not (libraries / "libonnxruntime-genai.so").is_file():
        pytest.skip("the program is linked as on Linux")
    (tmp_path / "libonnxruntime.so").symlink_to(next(capi.glob("libonnxruntime.so*")))
    source = ROOT / "examples" / "other_languages" / "genai.rs"
    command = ["rustc", "-o", tmp_path / "genai", "-L", f"native={libraries}", source]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    environment = os.environ | {"LD_LIBRARY_PATH": f"{libraries}:{tmp_path}"}
    folder = find_package("story")
    model = onnx_textgen.load(folder)
    for run in read_manifest(folder).golden:
        here = model.generate(run.prompt_ids, max_new_tokens=len(run.new_ids), temperature=0)  # golden ids hold where it was made
        arguments = [str(each) for each in (folder, len(run.new_ids), *run.prompt_ids)]
        done = subprocess.run([tmp_path / "genai", *arguments], check=True, capture_output=True, text=True, env=environment)
        assert done.stdout.strip() == ",".join(str(each) for each in here.token_ids)
