"""Detects that the files of a served model have changed since they were opened.

Weights are mapped, not read: overwriting them changes the text of a running server, and truncating them ends the process. Replacing
them by a rename leaves the running server unchanged, but it then serves other files than those on disk. Both are noticed.
"""

from __future__ import annotations

from pathlib import Path

from onnx_textgen import Model
from onnx_textgen.package.integrity import graph_files
from onnx_textgen.package.manifest import adapter_file


class ChangedFiles:
    """The identities of the graph, its weights and its adapters when the server opened them."""

    def __init__(self, model: Model, *more: Path) -> None:
        """`more`: further files whose change counts."""
        adapters = [model.folder / adapter_file(name) for name in model.manifest.adapters]
        self.files = [*graph_files(model.folder, model.manifest, model.generator.opened.graph_name), *adapters, *more]
        self.known = [identity(path) for path in self.files]

    def first(self) -> Path | None:
        """The first file that has changed, was replaced or is missing; None if there is none."""
        return next((path for path, known in zip(self.files, self.known, strict=True) if identity(path) != known), None)


def identity(path: Path) -> tuple[int, ...] | None:
    """Device, inode, size and modification time, which change with a file; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
