"""Checks that the files of a folder have the sizes and sha256 hashes of its manifest.

ONNX Runtime does not notice flipped bits in the weights. Every other file is checked before an engine reads a byte of it. The
weights, which are nothing but numbers, are checked while the engine opens them, and before anything is computed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..errors import PackageError
from ..files.graph_file import refuse_other_files
from ..files.text_files import compare_digest, readable
from ..machine_limits import threads_within_limits, usable_cores
from ..options.checks import shown
from .manifest import (
    ADAPTER_ENDING,
    GRAPH,
    MANIFEST,
    SETTINGS_OF_OTHERS,
    SHARED_FOLDER,
    FileRecord,
    Manifest,
    is_allowed,
    vision_files,
    weights_files,
)


def file_record(path: Path) -> FileRecord:
    """Measure a file's size and sha256."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileRecord(size=path.stat().st_size, sha256=digest)


def package_files(folder: Path) -> list[str]:
    """The names of the files in a folder that a model folder may have, besides its manifest, sorted."""
    paths = [*folder.iterdir(), *(folder / SHARED_FOLDER).glob("*")]
    return sorted(name for path in paths if is_allowed(name := path.relative_to(folder).as_posix()))


def check_files(folder: Path, manifest: Manifest) -> None:
    """Compare every listed file with its size and sha256; raises `PackageError`, which names the first one that differs."""
    check_list(folder, manifest)
    for name, expected in manifest.files.items():
        check_hash(folder / name, expected)


@contextlib.contextmanager
def checking_files(folder: Path, manifest: Manifest, graph: Path) -> Iterator[ThreadPoolExecutor]:
    """Like `check_files`, but check the weights while the body runs: the body may open `graph`, but compute nothing with it.

    Yields the threads that check, for whatever else can be done meanwhile: they are fewer than the cores, so that the body has one.
    Raises the errors of `check_files`, also if damaged weights made the body fail, and `PackageError` if the graph reads weights
    from a file that is not listed.
    """
    check_list(folder, manifest)
    weights = weights_files(manifest)
    for name, expected in manifest.files.items():
        if name not in weights:
            check_hash(folder / name, expected)
    refuse_other_files(graph, manifest.files)
    with ThreadPoolExecutor(max(1, (threads_within_limits() or usable_cores()) - 1)) as pool:
        checks = [pool.submit(check_hash, folder / name, manifest.files[name]) for name in weights]
        try:
            yield pool
        finally:
            for check in checks:
                check.result()


def check_list(folder: Path, manifest: Manifest) -> None:
    """Compare the listed files and sizes with those of the folder; raises `PackageError`."""
    if GRAPH not in manifest.files:
        raise PackageError(f"{folder / MANIFEST} lists no {GRAPH}; export the model again")
    unlisted = (name for name in package_files(folder) if name not in manifest.files and name not in SETTINGS_OF_OTHERS)
    if extra := [name for name in unlisted if not name.endswith(ADAPTER_ENDING)]:
        raise PackageError(f"{folder / MANIFEST} does not list {extra[0]}, which is in the folder; export or copy the model again")
    for name, expected in manifest.files.items():
        if not is_allowed(name) or not re.fullmatch(r"[0-9a-f]{64}", str(expected.sha256)):
            named = f"{folder / MANIFEST} lists {shown(name)}"
            raise PackageError(f"{named}, which is not a file of a model folder; export the model again")
        path = folder / name
        if not path.is_file():
            raise PackageError(f"{folder} is incomplete: {name} is missing; export or copy it again")
        size = path.stat().st_size
        if size != expected.size:
            listed = f"{expected.size:,}"
            raise PackageError(f"{path} is damaged: {size:,} bytes, the manifest says {listed:.60}; export or copy it again")


def check_hash(path: Path, expected: FileRecord) -> None:
    """Compare a file with its sha256; raises `PackageError`."""
    with readable(path):
        found = file_record(path).sha256
    compare_digest(path, found, expected.sha256)


def package_digest(folder: Path, manifest: Manifest, graph: str = GRAPH) -> str:
    """Compute a sha256 of the hashes of graph and weights; if the manifest has no hashes, the files are read and hashed."""
    files = graph_files(folder, manifest, graph)
    hashes = {record.sha256 for name, record in manifest.files.items() if folder / name in files}
    if not all(hashes):
        with readable(files[0]):
            hashes = {file_record(path).sha256 for path in files}
    return hashlib.sha256(json.dumps(sorted(hashes)).encode()).hexdigest()


def package_bytes(folder: Path, manifest: Manifest) -> int:
    """Bytes of graph and weights."""
    files = graph_files(folder, manifest)
    with readable(files[0]):
        return sum(path.stat().st_size for path in files)


def graph_files(folder: Path, manifest: Manifest, name: str = GRAPH) -> list[Path]:
    """The graph, then its weights: this project's files, and those whose names begin with the graph's, as usual elsewhere.

    Those that read pictures are among them: their rows are a part of what a cache holds.
    """
    graph = folder / (name if name in manifest.files else next(name for name in manifest.files if name.endswith(".onnx")))
    weights = {folder / each for each in (*weights_files(manifest), *vision_files(manifest))}
    return [graph, *sorted(weights | set(graph.parent.glob(f"{graph.name}?*")))]
