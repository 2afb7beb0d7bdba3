"""What the file of a graph says before an engine opens it: who made it, whether it defines functions, where its weights lie.

The file is mapped, not read: other exporters keep gigabytes of weights in it. The numbers of fields are those of onnx.proto.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Container, Iterator
from pathlib import Path

from ..errors import PackageError
from .onnx_wire import Message, read_places
from .text_files import readable

PRODUCER, FUNCTION = 2, 25
"""Fields of a model."""
TENSORS_IN: dict[str, dict[int, str]] = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
"""The fields of each message that lead to the entries that tell where a tensor's numbers lie: `location` and a file's name."""
OURS = "onnx-textgen"
"""The producer that the exporter writes into every graph."""
LONGEST_NAME = 100
MOST_FIELDS = 10_000
"""Of a model, beside its graph: versions, properties."""
MOST_PARTS = 2 * 10**6
"""Fields of a graph's messages that are looked at; a decoder has some ten thousand."""


@contextlib.contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """The bytes of a file that holds a model; raises `PackageError` where what the body finds shows that it does not."""
    with readable(path):
        is_file = path.is_file()
    if not is_file:  # a pipe would be waited for without end
        raise PackageError(f"{path.name} is no file; export or fetch the model again")
    with readable(path), path.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                yield content
        except (PackageError, ValueError) as error:  # an empty file cannot be mapped
            raise PackageError(f"{path.name} is no graph, or not whole; export or fetch the model again") from error


def read_model(path: Path) -> Iterator[tuple[int, bytes]]:
    """The fields of the model in a file, by number, each with the beginning of its content; raises `PackageError` for no model."""
    with mapped(path) as content:
        for count, (number, _, start, end) in enumerate(read_places(content, 0, len(content))):
            if count == MOST_FIELDS:
                raise PackageError("it has too many parts")
            yield number, content[start : min(end, start + LONGEST_NAME)]


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


def refuse_other_files(path: Path, listed: Container[str]) -> None:
    """Raise `PackageError` for a graph that reads numbers from a file that is not listed: nobody compares it with anything."""
    with mapped(path) as content:
        others = sorted({name for name in external_files(content) if name not in listed})
    if others:
        raise PackageError(f"{path.name} reads {others[0]!r:.80}, which the manifest does not list; export the model again")


def external_files(content: bytes | mmap.mmap) -> Iterator[str]:
    """The names of files that tensors of a model lie in, as often as they are named; raises `PackageError` for no model."""
    ahead, parts = [("model", 0, len(content))], 0
    while ahead:
        kind, start, end = ahead.pop()
        if kind == "entry":
            entry = Message(content[start:end])
            if entry.text(1) == "location":
                yield entry.text(2)
            continue
        for number, _, first, last in read_places(content, start, end):
            parts += 1
            if parts > MOST_PARTS:
                raise PackageError("it has too many parts")
            if number in TENSORS_IN[kind]:
                ahead.append((TENSORS_IN[kind][number], first, last))
