"""Lists the models on this machine: those that ship with onnx-textgen, in a folder, in the cache, and in that of the hub.

It reads only manifests and settings: no graph is opened, nothing is fetched, and huggingface_hub is not imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import PackageError
from ..files.user_folders import expanded
from ..hub.model_cache import cached_packages
from ..package.end_tokens import read_template
from ..package.locate import embedded_packages
from ..package.manifest import CHAT_TEMPLATE, Architecture
from ..package.misnamed import is_model_folder
from ..package.reading import has_manifest, read_manifest

EMBEDDED, FOLDER, CACHE, HUB_CACHE = "embedded", "folder", "cache", "hub cache"


@dataclass(frozen=True, slots=True)
class Entry:
    """One model."""

    name: str
    """The name that `load()` and `--model` take."""
    folder: Path
    origin: str
    """`embedded`, `folder`, `cache` (exported on this machine for its name) or `hub cache`."""
    precision: str = "unknown"
    """`unknown` for a folder of another exporter, which does not state it."""
    size_bytes: int | None = None
    """Size of all files of the package; of a folder of another exporter, graph and weights."""
    context_length: int | None = None
    """None if only the graph states it."""
    has_chat_template: bool = False
    architecture: Architecture = "decoder"
    problem: str | None = None
    """Why the folder cannot be read; None if it can."""


def list_models(folder: Path | None = None) -> list[Entry]:
    """All models on this machine, or `folder` and the folders directly in it; raises `PackageError` if it is not a folder."""
    if folder is not None:
        if not folder.is_dir():
            raise PackageError(f"{folder} is not a folder; name one that has model folders in it")
        inside = sorted(path for path in folder.iterdir() if path.is_dir())
        return [describe(str(path), path, FOLDER) for path in (folder, *inside) if is_model_folder(path)]
    embedded = [describe(name, path, EMBEDDED) for name, path in embedded_packages().items()]
    embedded += [describe(name, path, CACHE) for name, path in cached_packages().items()]
    return embedded + [describe(name, path, HUB_CACHE) for name, path in cached_models() if is_model_folder(path)]


def describe(name: str, folder: Path, origin: str) -> Entry:
    """The entry of a model folder; an error of the package becomes its `problem`."""
    try:
        if has_manifest(folder):
            manifest = read_manifest(folder)
            length, size = manifest.geometry.context_length, manifest.size_bytes
            has_template = CHAT_TEMPLATE in manifest.files
            return Entry(name, folder, origin, manifest.precision_name, size, length, has_template, manifest.architecture)
        from ..package.foreign import describe_foreign, halves_of  # noqa: PLC0415  (ONNX Runtime takes half a second)

        size, found = describe_foreign(folder)
        has_template, halves = read_template(folder) is not None, halves_of(folder)
        return Entry(name, folder, origin, "unknown", size, found, has_template, "decoder" if halves is None else "encoder-decoder")
    except PackageError as error:
        return Entry(name, folder, origin, problem=str(error))


def cached_models() -> Iterator[tuple[str, Path]]:
    """Names and folders of the models in the cache of the hub, each with the name of its revision, or its hash."""
    for repository in sorted(hub_cache().glob("models--*--*")):
        name = repository.name.removeprefix("models--").replace("--", "/", 1)
        refs = repository / "refs"
        revisions = {path.read_text(encoding="utf-8").strip(): path for path in sorted(refs.rglob("*")) if path.is_file()}
        for folder in sorted(repository.glob("snapshots/*")):
            ref = revisions.get(folder.name)
            revision = ref.relative_to(refs).as_posix() if ref is not None else folder.name
            yield (name if revision == "main" else f"{name}@{revision}"), folder


def hub_cache() -> Path:
    """The cache folder of huggingface_hub, by the variables that it reads."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    return expanded(os.environ.get("HF_HUB_CACHE") or f"{home}/hub")
