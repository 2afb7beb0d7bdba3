"""transformers.js opens packages unchanged, and writes what Python writes."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import onnx_textgen
from onnx_textgen.package.locate import find_package
from onnx_textgen_export import export
from support.node import NODE, installed_packages

HERE = Path(__file__).resolve().parent / "transformers_js"
PROMPTS = ["Once upon a time", "The little dog", "Lily and Tom went to the park. They"]
TOKENS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program and transformers.js."""
    made = tmp_path_factory.mktemp("transformers_js")
    shutil.copy(HERE / "generate.mjs", made)
    (made / "node_modules").symlink_to(installed_packages(HERE), target_is_directory=True)
    return made


def written(folder: Path, package: Path, prompts: list[Any], **options: Any) -> dict[str, Any]:
    """What transformers.js writes, and the precision and device that it chose."""
    assert NODE is not None, "the packages are installed"
    tasks = [{"prompt": prompt, "tokens": TOKENS} for prompt in prompts]
    job = json.dumps({"folder": str(package), "options": options, "tasks": tasks})
    done = subprocess.run([NODE, "generate.mjs", job], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", ["story", "tiny-transformer"])
def test_without_any_option_the_texts_and_the_precision_are_the_packages(folder: Path, name: str) -> None:
    model = onnx_textgen.load(name, device="cpu", threads=1)
    found = written(folder, find_package(name), PROMPTS)
    assert (found["dtype"], found["device"]) == ("q8", "cpu")
    ours = [prompt + model.generate(prompt, temperature=0, max_new_tokens=TOKENS).text for prompt in PROMPTS]
    assert found["texts"] == ours


def test_a_chat_is_rendered_by_the_packages_own_template(folder: Path, shared: Path, tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.role }} said: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}Lily said:{% endif %}"
    )
    checkpoint = Path(shutil.copytree(shared / "checkpoints" / "stories260K", tmp_path / "checkpoint"))
    (checkpoint / "chat_template.jinja").write_text(template, encoding="utf-8")
    package = export(checkpoint, tmp_path / "package").folder
    model = onnx_textgen.load(package, device="cpu", threads=1)
    chats = [[{"role": "Tom", "content": text}] for text in PROMPTS]
    found = written(folder, package, chats)
    assert found["dtype"] == "fp32"
    assert found["texts"] == [model.chat(chat, temperature=0, max_new_tokens=TOKENS).text for chat in chats]


@pytest.mark.slow
def test_a_float16_package_opens_too(folder: Path, shared: Path, tmp_path: Path) -> None:
    package = export(shared / "checkpoints" / "stories260K", tmp_path / "package", precision="fp16").folder
    model = onnx_textgen.load(package, device="cpu", threads=1)
    found = written(folder, package, PROMPTS[:1])
    assert found["dtype"] == "fp16"
    assert found["texts"] == [PROMPTS[0] + model.generate(PROMPTS[0], temperature=0, max_new_tokens=TOKENS).text]
