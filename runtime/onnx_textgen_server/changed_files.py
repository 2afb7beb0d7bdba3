"""Detects that the files of a served model have changed since they were opened.

Weights are mapped, not read: overwriting them changes the text of a running server, and truncating them ends the process. Replacing
them by a rename leaves the running server unchanged, but it then serves other files than those on disk. Both are reported.
"""

from __future__ import annotations

from pathlib import Path

from onnx_textgen import Model
from onnx_textgen.errors import ModelError
from onnx_textgen.package.integrity import graph_files
from onnx_textgen.package.manifest import adapter_file


class ChangedFiles:
    """The identities of the graph, its weights and its adapters when the server opened them."""

    def __init__(self, model: Model) -> None:
        self.folder = model.folder
        adapters = [model.folder / adapter_file(name) for name in model.adapters]
        self.files = [*graph_files(model.folder, model.manifest, model.opened.graph_name), *adapters]
        self.known = [identity(path) for path in self.files]

    def check(self) -> None:
        """Raise `ModelError` if a file has changed, was replaced or is missing."""
        for path, known in zip(self.files, self.known, strict=True):
            if identity(path) != known:
                raise ModelError(
                    f"{path.name} has changed since this server opened {self.folder.name}; restart the server, "
                    "and replace a served folder only as a whole, by a rename"
                )


def identity(path: Path) -> tuple[int, ...] | None:
    """Device, inode, size and modification time, which change with a file; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
