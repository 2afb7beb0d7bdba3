"""What the file of a graph says before an engine opens it: who made it, whether it defines functions.

The file is mapped, not read: other exporters keep gigabytes of weights in it. The numbers of fields are those of onnx.proto.
"""

from __future__ import annotations

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


def read_model(path: Path) -> Iterator[tuple[int, bytes]]:
    """The fields of the model in a file, by number, each with the beginning of its content; raises `PackageError` for no model."""
    with readable(path), path.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                for count, (number, _, start, end) in enumerate(read_places(content, 0, len(content))):
                    if count == MOST_FIELDS:
                        raise PackageError("it has too many parts")
                    yield number, content[start : min(end, start + LONGEST_NAME)]
        except (PackageError, ValueError) as error:  # an empty file cannot be mapped
            raise PackageError(f"{path.name} is no graph, or not whole; export or fetch the model again") from error


def producer_of(path: Path) -> str:
    """Who made a graph."""
    names = [content for number, content in read_model(path) if number == PRODUCER]
    return names[-1].decode("utf-8", "replace") if names else ""


def refuse_functions(path: Path) -> None:
    """Raise `PackageError` for a graph that defines functions of its own, and for a file that is no graph.

    An engine writes a function out wherever it is called, so that a file of some kilobytes, of functions that call one another
    several times, keeps it busy for days: before any deadline, and deaf to Ctrl-C. The exporters of decoders define none.
    """
    if any(number == FUNCTION for number, _ in read_model(path)):
        raise PackageError(
            f"{path.name} defines functions of its own, which can keep an engine busy without end; inline them first"
        )
