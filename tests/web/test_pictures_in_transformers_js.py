"""transformers.js reads pictures by packages unchanged, in Node and in Chromium, and writes what Python writes."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import onnx_textgen
from onnx_textgen.diagnostics.runtimes.browser import find_browser
from onnx_textgen.errors import DeviceError
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import MANIFEST
from onnx_textgen.package.reading import read_manifest
from onnx_textgen_export import export
from support.drawn_numbers import drawn
from support.image_checkpoints import KINDS, noise, write_checkpoint
from support.node import NODE, installed_packages

HERE = Path(__file__).resolve().parent / "transformers_js"
TOKENS = 8
QUESTION = "What number is this?"
Pixels = Any


def in_node(package: Path, tasks: list[dict[str, Any]], place: Path) -> list[dict[str, Any]]:
    """Ids of prompts and of what transformers.js writes after them."""
    packages = installed_packages(HERE)
    for name in ("pictures.js", "pictures.mjs"):
        shutil.copy(HERE / name, place)
    (place / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    (place / "node_modules").symlink_to(packages, target_is_directory=True)
    (place / "job.json").write_text(json.dumps({"folder": str(package), "tokens": TOKENS, "tasks": tasks}), encoding="utf-8")
    assert NODE is not None, "the packages are installed"
    done = subprocess.run([NODE, "pictures.mjs", "job.json"], cwd=place, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    return list(json.loads(done.stdout.splitlines()[-1]))


def in_chromium(package: Path, tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same in a browser."""
    try:
        browser = find_browser()
    except DeviceError as error:
        pytest.skip(str(error))
    folders = {"here": HERE, "modules": installed_packages(HERE), "package": package}
    job = {"folder": "package", "tokens": TOKENS, "tasks": tasks}
    found = json.loads(browser.answer("here/pictures.html", job, folders, {MANIFEST, *read_manifest(package).files}))
    assert isinstance(found, list), found
    return found


def as_json(picture: Pixels) -> dict[str, Any]:
    """A picture of a task."""
    return {"data": base64.b64encode(picture.tobytes()).decode(), "height": picture.shape[0], "width": picture.shape[1]}


def number(digits: str) -> Pixels:
    """Pixels of a number."""
    import io  # noqa: PLC0415

    return np.asarray(Image.open(io.BytesIO(drawn(digits))).convert("RGB"))


def asked() -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """Questions about numbers, for transformers.js and for the package: one picture, two, and none."""

    def question(*pictures: str) -> list[dict[str, Any]]:
        messages = list[dict[str, Any]]()
        for place, each in enumerate(pictures):
            messages += [{"role": "assistant", "content": pictures[place - 1]}] if place else []
            parts = [{"type": "image", "image": number(each)}, {"type": "text", "text": QUESTION}]
            messages.append({"role": "user", "content": parts})
        return messages

    chats = [question("407"), question("58"), question("31", "8"), [{"role": "user", "content": "Hello"}]]
    tasks = []
    for chat in chats:
        parts = [part for message in chat if isinstance(message["content"], list) for part in message["content"]]
        pictures = [as_json(part["image"]) for part in parts if part["type"] == "image"]
        plain = [
            message
            if isinstance(message["content"], str)
            else {**message, "content": [{key: each[key] for key in each if key != "image"} for each in message["content"]]}
            for message in chat
        ]
        tasks.append({"messages": plain, "pictures": pictures})
    return tasks, chats


def check_numbers(found: list[dict[str, Any]], chats: list[list[dict[str, Any]]]) -> None:
    """Compare with what Python writes."""
    model = onnx_textgen.load("digits", device="cpu", threads=1)
    token = model.manifest.images.token_id  # type: ignore[union-attr]
    for each, chat in zip(found, chats, strict=True):
        ids = model.encode_chat(chat)
        assert each["prompt"] == [token if one < 0 else one for one in ids]
        ours = model.generate(ids, temperature=0, max_new_tokens=TOKENS)
        assert model.tokenizer.decode(each["written"]) == ours.text
    assert [model.tokenizer.decode(each["written"]) for each in found[:3]] == ["407", "58", "8"]


def test_node_reads_numbers(tmp_path: Path) -> None:
    tasks, chats = asked()
    check_numbers(in_node(find_package("digits"), tasks, tmp_path), chats)


def test_chromium_reads_numbers() -> None:
    tasks, chats = asked()
    check_numbers(in_chromium(find_package("digits"), tasks), chats)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "precision"),
    [("gemma3", "fp16"), ("idefics3", "fp32"), ("llava", "int4")],
)
def test_types_write_what_python_writes(model_type: str, precision: Any, tmp_path: Path) -> None:
    write_checkpoint(model_type, tmp_path / "checkpoint", KINDS[model_type])
    (tmp_path / "checkpoint" / "generation_config.json").write_text('{"eos_token_id": 255}')  # others open no model without one
    most = KINDS[model_type].processor.get("image_seq_len")  # of a tile: others read each picture as one
    package = export(tmp_path / "checkpoint", tmp_path / "package", precision=precision, image_tokens=most).folder
    model = onnx_textgen.load(package, device="cpu", threads=1)
    about = model.manifest.images
    assert about is not None
    pictures = [noise(40, 66), noise(40, 66, seed=1)]
    texts = [("See ", ": what?"), ("One ", " and ", ": which?")]
    tasks = [
        {"prompt": about.expansion.join(text), "pictures": [as_json(each) for each in pictures[: len(text) - 1]]} for text in texts
    ]
    (tmp_path / "node").mkdir()
    found = in_node(package, tasks, tmp_path / "node")
    for each, text in zip(found, texts, strict=True):
        ids = model.encode(about.placeholder.join(text), images=pictures[: len(text) - 1])
        assert each["prompt"] == [about.token_id if one < 0 else one for one in ids]
        ours = model.generate(ids, temperature=0, max_new_tokens=TOKENS)
        assert each["written"][: len(ours.token_ids)] == list(ours.token_ids)


@pytest.mark.slow
def test_models_whose_pictures_follow_their_size_read_text_there(tmp_path: Path) -> None:
    write_checkpoint("qwen2_vl", tmp_path / "checkpoint", KINDS["qwen2_vl"])
    (tmp_path / "checkpoint" / "generation_config.json").write_text('{"eos_token_id": 255}')
    package = export(tmp_path / "checkpoint", tmp_path / "package").folder
    names = {path.name for path in (package / "onnx").iterdir()}
    assert {"model.onnx", "model.onnx_data"} <= names and "embed_tokens.onnx" not in names
