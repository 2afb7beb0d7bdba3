"""What the file of a graph says before an engine opens it: who made it, whether it defines functions, where its weights lie.

The file is mapped, not read: other exporters keep gigabytes of weights in it. The numbers of fields are those of onnx.proto.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
from collections.abc import Iterator
from pathlib import Path

from .errors import PackageError
from .onnx_wire import read_places
from .text_files import readable

PRODUCER, FUNCTION = 2, 25
"""Fields of a model."""
OURS = "onnx-textgen"
"""The producer that the exporter writes into every graph."""
LONGEST_NAME = 100
MOST_FIELDS = 10_000
"""Of a model, beside its graph: versions, properties."""


@contextlib.contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """The bytes of a graph's file; raises `PackageError` where it cannot be read."""
    with readable(path), path.open("rb") as file:
        try:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise PackageError(f"{path} is empty; export or fetch the model again") from error
        with content:
            yield content


def producer_of(path: Path) -> str:
    """Who made a graph; raises `PackageError` for a file that is none."""
    with mapped(path) as content:
        places = read_places(content, 0, len(content))
        names = [
            content[start : min(end, start + LONGEST_NAME)]
            for number, _, start, end in itertools.islice(places, MOST_FIELDS)
            if number == PRODUCER
        ]
    return names[-1].decode("utf-8", "replace") if names else ""
