"""That the files of a folder are the ones that its manifest describes: every file's size and sha256.

ONNX Runtime itself accepts flipped bits in the weights. All but the weights is compared before an engine sees a byte; these, which
are numbers and nothing else, while it opens them, and before anything is computed.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from ..errors import PackageError
from ..files.text_files import compare_digest, readable
from .manifest import ALLOWED_FILES, GRAPH, MANIFEST, WEIGHTS, FileRecord, Manifest


def file_record(path: Path) -> FileRecord:
    """Size and sha256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileRecord(size=path.stat().st_size, sha256=digest)


def check_files(folder: Path, manifest: Manifest) -> None:
    """Compare every listed file with its size and sha256; raises `PackageError` naming the first that differs."""
    with checking_files(folder, manifest):
        pass


@contextlib.contextmanager
def checking_files(folder: Path, manifest: Manifest) -> Iterator[None]:
    """The same, but that the weights are read while the body runs, and found right at its end: an engine may open them, no more.

    Errors are those of `check_files`, also where damaged weights made the body fail.
    """
    check_list(folder, manifest)
    for name, expected in manifest.files.items():
        if name != WEIGHTS:
            check_hash(folder / name, expected)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        weights = thread.submit(check_hash, folder / WEIGHTS, manifest.files[WEIGHTS]) if WEIGHTS in manifest.files else None
        try:
            yield
        finally:
            if weights is not None:
                weights.result()


def check_list(folder: Path, manifest: Manifest) -> None:
    """Compare the listed files with those that are there, and their sizes."""
    if GRAPH not in manifest.files:
        raise PackageError(f"{folder / MANIFEST} lists no {GRAPH}; export the model again")
    if extra := sorted(name for name in ALLOWED_FILES - manifest.files.keys() if (folder / name).exists()):
        raise PackageError(f"{folder / MANIFEST} does not list {extra[0]}, which is there; export or copy the model again")
    for name, expected in manifest.files.items():
        if name not in ALLOWED_FILES or not re.fullmatch(r"[0-9a-f]{64}", str(expected.sha256)):
            raise PackageError(f"{folder / MANIFEST} lists {name!r}, which is no file of a model folder; export the model again")
        path = folder / name
        if not path.is_file():
            raise PackageError(f"{folder} is incomplete: {name} is missing; export or copy it again")
        size = path.stat().st_size
        if size != expected.size:
            said = f"{expected.size:,}"
            raise PackageError(f"{path} is damaged: {size:,} bytes, the manifest says {said:.60}; export or copy it again")


def check_hash(path: Path, expected: FileRecord) -> None:
    """Compare a file with its sha256."""
    with readable(path):
        found = file_record(path).sha256
    compare_digest(path, found, expected.sha256)


def package_digest(folder: Path, manifest: Manifest, graph: str = GRAPH) -> str:
    """A sha256 of the hashes of graph and weights; where a manifest has none, of the graph's files, which are read."""
    files = graph_files(folder, manifest, graph)
    hashes = {record.sha256 for name, record in manifest.files.items() if folder / name in files}
    if not all(hashes):
        with readable(files[0]):
            hashes = {file_record(path).sha256 for path in files}
    return hashlib.sha256(json.dumps(sorted(hashes)).encode()).hexdigest()


def package_bytes(folder: Path, manifest: Manifest) -> int:
    """Size of graph and weights."""
    files = graph_files(folder, manifest)
    with readable(files[0]):
        return sum(path.stat().st_size for path in files)


def graph_files(folder: Path, manifest: Manifest, name: str = GRAPH) -> list[Path]:
    """The graph and its weights: ours, or where they are called like the graph, as by all exporters."""
    graph = folder / (name if name in manifest.files else next(name for name in manifest.files if name.endswith(".onnx")))
    ours = {folder / WEIGHTS} if WEIGHTS in manifest.files else set[Path]()
    return [graph, *sorted(ours | set(graph.parent.glob(f"{graph.name}?*")))]
