"""transformers.js writes down speech by packages unchanged, and writes what Python writes."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import onnx_textgen
from onnx_textgen.speech.sounds import read_sound
from onnx_textgen_export import export
from support.costs import by_cost
from support.node import NODE, installed_packages
from support.whisper import whisper_checkpoint

HERE = Path(__file__).resolve().parent / "transformers_js"
RATE = 16_000
SAID = (
    "The weather forecast says that it will rain in the north and stay dry in the south.",
    "Good morning, and thank you for coming.",
)


def in_node(package: Path, sounds: list[Any], options: dict[str, Any], place: Path) -> list[dict[str, Any]]:
    packages = installed_packages(HERE)
    shutil.copy(HERE / "transcribe.mjs", place)
    (place / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    (place / "node_modules").symlink_to(packages, target_is_directory=True)
    tasks = [{"samples": base64.b64encode(each.astype("<f4").tobytes()).decode(), "options": options} for each in sounds]
    (place / "job.json").write_text(json.dumps({"folder": str(package), "tasks": tasks}), encoding="utf-8")
    assert NODE is not None, "the packages are installed"
    done = subprocess.run([NODE, "transcribe.mjs", "job.json"], cwd=place, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("precision", by_cost([], slow=["fp32"], rare=["int8"]))
def test_texts_and_times_are_those_of_python(precision: Any, tmp_path: Path) -> None:
    if shutil.which("espeak-ng") is None:
        pytest.skip("needs espeak-ng, which speaks the sentences")
    pytest.importorskip("soxr")
    package = export(whisper_checkpoint(tmp_path / "checkpoint"), tmp_path / "package", precision=precision).folder
    sounds = list[Any]()
    for text in SAID:
        subprocess.run(["espeak-ng", "-s", "150", "-w", str(tmp_path / "said.wav"), text], check=True)
        sounds.append(read_sound(tmp_path / "said.wav", None, RATE))
    (tmp_path / "node").mkdir()
    found = in_node(package, sounds, {"return_timestamps": True}, tmp_path / "node")
    model = onnx_textgen.load(package, device="cpu")
    for samples, theirs in zip(sounds, found, strict=True):
        ours = model.transcribe(samples, temperature=0)
        assert theirs["text"].strip() == ours.text
        assert [each["timestamp"] for each in theirs["chunks"]] == [
            [pytest.approx(each.start), pytest.approx(each.end)] for each in ours.segments
        ]
