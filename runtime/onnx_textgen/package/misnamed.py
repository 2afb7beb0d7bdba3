"""Explains why a path is not a model folder: one line that says what it is instead, and what to do."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from ..errors import did_you_mean as similar
from .locate import embedded_packages
from .manifest import MANIFEST

GGUF = b"GGUF"
"""The first bytes of llama.cpp's files, whatever their names are."""
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
EXPORT = "onnx-textgen export SOURCE --out DIR"
LIST = "onnx-textgen list shows the models at hand"
INSTEAD = f"{LIST}, and this makes one: {EXPORT}"


def why_no_package(path: Path) -> str:
    """Explain what is wrong with a path that was given for a model, and has neither a manifest nor a graph."""
    if not path.exists():
        from .short_names import short_names  # noqa: PLC0415  (for this line only)

        if str(path) in short_names():
            return f"{path} is not on this machine; fetch it with: onnx-textgen pull {path}"
        closest = did_you_mean(path)
        return f"{path} is not a folder, and no model at hand has that name; {closest}{LIST if closest else INSTEAD}"
    return explain_folder(path) if path.is_dir() else explain_file(path)


def explain_folder(folder: Path) -> str:
    """Explain a folder that is not a model folder."""
    lacks = f"has no {MANIFEST} and no graph"
    if is_checkpoint(folder):
        return f"{folder} is a Hugging Face checkpoint, which {lacks} yet; {how_to_export(folder)}"
    if inside := model_folders(folder):
        return f"{folder} {lacks}, but contains model folders; name one of them, such as {inside[0]}"
    if found := sorted(folder.glob("*.gguf")):
        return explain_gguf(found[0])
    return f"{folder} {lacks}; {INSTEAD}"


def explain_file(path: Path) -> str:
    """Explain a file that is not a graph."""
    if begins_with(path, GGUF):
        return explain_gguf(path)
    if is_model_folder(path.parent):
        return f"{path} is a file of a model folder; give the folder: {path.parent}"
    if is_checkpoint(path.parent):
        return f"{path} is a file of a Hugging Face checkpoint; {how_to_export(path.parent)}"
    if path.suffix in WEIGHT_SUFFIXES:
        return f"{path} has weights but no graph; export the whole checkpoint that it belongs to: {EXPORT}"
    return f"{path} is a file, but neither a model folder nor a graph (*.onnx); {INSTEAD}"


def explain_gguf(path: Path) -> str:
    """Explain a file in llama.cpp's format."""
    return f"{path} is a GGUF file; {how_to_export(path)}"


def how_to_export(checkpoint: Path) -> str:
    """The command that exports a checkpoint, a folder or a GGUF file, to a new folder next to it."""
    name = checkpoint.resolve().stem if checkpoint.suffix == ".gguf" else checkpoint.resolve().name
    target = os.path.normpath(checkpoint / ".." / f"{name}-onnx")
    return f"make a model folder from it: onnx-textgen export {shlex.quote(str(checkpoint))} --out {shlex.quote(target)}"


def did_you_mean(path: Path) -> str:
    """A question with the model or folder whose name is most similar; empty if no name is similar."""
    from .short_names import short_names  # noqa: PLC0415  (for a mistake only)

    folders = {folder.name.casefold(): str(folder) for folder in model_folders(path.parent)}
    return similar(path.name, (*embedded_packages(), *short_names()), folders)


def model_folders(folder: Path) -> list[Path]:
    """The model folders directly in a folder; none if it is not a folder, or cannot be read."""
    try:
        return sorted(filter(is_model_folder, folder.iterdir()))
    except OSError:
        return []


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder has the settings and the weights of a transformers model."""
    patterns = ("*.safetensors", "pytorch_model*.bin")
    return (folder / "config.json").is_file() and any(has_any(folder.glob(pattern)) for pattern in patterns)


def is_model_folder(folder: Path) -> bool:
    """Return whether a folder has a manifest or a graph."""
    return (folder / MANIFEST).is_file() or has_any(folder.glob("*.onnx")) or has_any(folder.glob("onnx/*.onnx"))


def has_any(found: Iterable[Path]) -> bool:
    """Return whether an iterable has at least one path."""
    return next(iter(found), None) is not None


def begins_with(path: Path, magic: bytes) -> bool:
    """Return whether a file begins with these bytes; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False
