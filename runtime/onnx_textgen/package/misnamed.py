"""Why a path is no model folder, in one line that says what it is instead, and what to do."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from .locate import embedded_packages
from .manifest import MANIFEST

GGUF = b"GGUF"
"""How llama.cpp's files begin, whatever they are called."""
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
EXPORT = "onnx-textgen export SOURCE --out DIR"
LIST = "onnx-textgen list shows the models at hand"
INSTEAD = f"{LIST}, and this makes one: {EXPORT}"


def why_no_package(path: Path) -> str:
    """What is wrong with a path that was given for a model, and has neither a manifest nor a graph."""
    if not path.exists():
        closest = did_you_mean(path)
        return f"{path} is not a folder, and no model at hand is called that; {closest}{LIST if closest else INSTEAD}"
    return of_folder(path) if path.is_dir() else of_file(path)


def of_folder(folder: Path) -> str:
    """The same of a folder."""
    lacks = f"has no {MANIFEST} and no graph"
    if is_checkpoint(folder):
        return f"{folder} is a Hugging Face checkpoint, which {lacks} yet; {export_of(folder)}"
    if inside := model_folders(folder):
        return f"{folder} {lacks}, but model folders in it; name one of them, such as {inside[0]}"
    if found := sorted(folder.glob("*.gguf")):
        return of_gguf(found[0])
    return f"{folder} {lacks}; {INSTEAD}"


def of_file(path: Path) -> str:
    """The same of a file that is no graph."""
    if begins_with(path, GGUF):
        return of_gguf(path)
    if is_model_folder(path.parent):
        return f"{path} is a file of a model folder; give the folder: {path.parent}"
    if is_checkpoint(path.parent):
        return f"{path} is a file of a Hugging Face checkpoint; {export_of(path.parent)}"
    if path.suffix in WEIGHTS:
        return f"{path} has weights and no graph; take the whole checkpoint that it belongs to, and export that: {EXPORT}"
    return f"{path} is a file, and neither a model folder nor a graph (*.onnx); {INSTEAD}"


def of_gguf(path: Path) -> str:
    """The same of a file in llama.cpp's format."""
    return f"{path} is a GGUF file, which llama.cpp reads; take the checkpoint that it was made from, and export that: {EXPORT}"


def export_of(checkpoint: Path) -> str:
    """How to make a model folder of a checkpoint: another one, beside it."""
    target = os.path.normpath(checkpoint / ".." / f"{checkpoint.resolve().name}-onnx")
    return f"make a model folder of it: onnx-textgen export {shlex.quote(str(checkpoint))} --out {shlex.quote(target)}"


def did_you_mean(path: Path) -> str:
    """The embedded model or the folder that is written most alike, as a question; empty where nothing is."""
    names = {folder.name: str(folder) for folder in model_folders(path.parent)} | {name: name for name in embedded_packages()}
    closest = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {names[closest[0]]}? " if closest else ""


def model_folders(folder: Path) -> list[Path]:
    """The model folders that lie directly in a folder; none in what is no folder, or cannot be read."""
    try:
        return sorted(filter(is_model_folder, folder.iterdir()))
    except OSError:
        return []


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder has the settings and the weights of a model of transformers."""
    patterns = ("*.safetensors", "pytorch_model*.bin")
    return (folder / "config.json").is_file() and any(has_any(folder.glob(pattern)) for pattern in patterns)


def is_model_folder(folder: Path) -> bool:
    """Whether a folder has a manifest or a graph."""
    return (folder / MANIFEST).is_file() or has_any(folder.glob("*.onnx")) or has_any(folder.glob("onnx/*.onnx"))


def has_any(found: Iterable[Path]) -> bool:
    """Whether there is one."""
    return next(iter(found), None) is not None


def begins_with(path: Path, mark: bytes) -> bool:
    """Whether a file begins with these bytes."""
    try:
        with path.open("rb") as file:
            return file.read(len(mark)) == mark
    except OSError:
        return False
