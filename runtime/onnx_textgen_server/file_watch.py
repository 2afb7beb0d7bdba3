"""Whether a served model's files are still those that were opened.

Weights are mapped, not read: written over, they change the text of a running server, and cut short they kill it. What is put in
their place by a rename changes nothing that runs, but it is not what the server serves. Either way somebody should be told.
"""

from __future__ import annotations

from pathlib import Path

from onnx_textgen import Model
from onnx_textgen.errors import ModelError
from onnx_textgen.package.integrity import graph_files


class FileWatch:
    """Remembers what the graph and its weights were when the watch began."""

    def __init__(self, model: Model) -> None:
        self.folder = model.folder
        self.files = graph_files(model.folder, model.manifest, model.opened.graph_name)
        self.known = [identity(path) for path in self.files]

    def check(self) -> None:
        """Raise `ModelError` where a file has changed, was replaced or is gone."""
        for path, known in zip(self.files, self.known, strict=True):
            if identity(path) != known:
                raise ModelError(
                    f"{path.name} has changed since this server opened {self.folder.name}; start the server again, "
                    "and replace a folder that is served only as a whole, by a rename"
                )


def identity(path: Path) -> tuple[int, ...] | None:
    """What changes with a file's content; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
