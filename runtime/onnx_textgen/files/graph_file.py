"""Inspects a graph's file before an engine opens it: its producer, whether it defines functions, which files hold its weights.

The file is memory-mapped instead of read, because other exporters keep gigabytes of weights in it. Field numbers are those of
onnx.proto.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Container, Iterator
from pathlib import Path

from ..errors import PackageError
from .onnx_graph import GRAPH, MODEL, TENSOR
from .onnx_wire import Message, read_spans
from .text_files import readable

PRODUCER, FUNCTION = 2, 25
"""Field numbers in a model."""
PATHS_TO_TENSORS: dict[str, dict[int, str]] = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
"""For each kind of message: the fields to follow down to `external_data`, whose entry `location` names a file of weights."""
LOCATION = b"location"
OUR_PRODUCER = "onnx-textgen"
"""The producer name that the exporter writes into every graph."""
MOST_BYTES_SHOWN = 100
"""Bytes of a field that `read_model` returns."""
MOST_MODEL_FIELDS = 10_000
"""Limit for the fields of a model, such as its graph, versions and properties."""
MOST_FIELDS = 2 * 10**6
"""Limit for the fields in all messages of a model together; a decoder has about ten thousand."""


@contextlib.contextmanager
def map_model(path: Path) -> Iterator[mmap.mmap]:
    """Map a model's file into memory; raises `PackageError` if the file is not a model, also if only the body finds that out."""
    with readable(path):
        is_file = path.is_file()
    if not is_file:  # opening a pipe would wait without end
        raise PackageError(f"{path.name} is not a file; export or fetch the model again")
    with readable(path), path.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                yield content
        except (PackageError, ValueError) as error:  # an empty file cannot be mapped
            raise PackageError(f"{path.name} is not a graph, or is incomplete; export or fetch the model again") from error


def read_model(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the first bytes of each field of a model; raises `PackageError` if the file is not a model."""
    with map_model(path) as content:
        for count, (number, _, start, end) in enumerate(read_spans(content, 0, len(content))):
            if count == MOST_MODEL_FIELDS:
                raise PackageError("it has too many fields")
            yield number, content[start : min(end, start + MOST_BYTES_SHOWN)]


def producer_of(path: Path) -> str:
    """The name of the program that made a graph; empty if the file names none."""
    names = [content for number, content in read_model(path) if number == PRODUCER]
    return names[-1].decode("utf-8", "replace") if names else ""


def refuse_functions(path: Path) -> None:
    """Raise `PackageError` if a graph defines functions, or if the file is not a graph.

    An engine inlines a function at each call. So a file of a few kilobytes whose functions call one another repeatedly can keep the
    engine busy for days, before any deadline applies and without a reaction to Ctrl-C. Exporters of decoders define no functions.
    """
    if any(number == FUNCTION for number, _ in read_model(path)):
        raise PackageError(f"{path.name} defines functions, which can keep an engine busy without end; inline them first")


def refuse_other_files(path: Path, listed: Container[str]) -> None:
    """Raise `PackageError` if a graph reads weights from a file that is not in `listed`: no hash protects such a file."""
    with map_model(path) as content:
        others = sorted({name for name in external_files(content) if name not in listed})
    if others:
        raise PackageError(f"{path.name} reads {others[0]!r:.80}, which the manifest does not list; export the model again")


def external_files(content: bytes | mmap.mmap) -> Iterator[str]:
    """Yield the name of the file of each tensor that lies outside the model; raises `PackageError` if `content` is not a model.

    Messages without the word that begins such a name are not read: most of a graph's nodes.
    """
    pending, fields = [("model", 0, len(content))], 0
    while pending:
        kind, start, end = pending.pop()
        if kind == "entry":
            entry = Message(content[start:end])
            if entry.text(1) == LOCATION.decode():
                yield entry.text(2)
            continue
        for number, _, first, last in read_spans(content, start, end):
            fields += 1
            if fields > MOST_FIELDS:
                raise PackageError("it has too many fields")
            if number in PATHS_TO_TENSORS[kind] and content.find(LOCATION, first, last) >= 0:
                pending.append((PATHS_TO_TENSORS[kind][number], first, last))


def with_links_followed(path: Path, model: bytes) -> tuple[bytes, Path]:
    """The content of the graph at `path`, and the folder where an engine that opens it from memory finds its weights.

    A cache of the hub has links in a model's folder; the files themselves lie in another folder, under other names. An engine
    that opens the file looks there too, but from memory it takes only what lies in the folder that it is told.
    """
    if not path.is_symlink():
        return model, path.parent
    folder, message = path.resolve().parent, Message(model)
    (graph,) = message.messages(MODEL.GRAPH)
    tensors, is_changed = graph.messages(GRAPH.INITIALIZER), False
    for tensor in tensors:
        entries = tensor.messages(TENSOR.EXTERNAL)
        for entry in entries:
            if entry.text(1) == LOCATION.decode():
                real = (path.parent / entry.text(2)).resolve()
                if not real.is_relative_to(folder):
                    return model, path.parent
                entry.replace(2, [real.relative_to(folder).as_posix()])
                is_changed = True
        tensor.replace(TENSOR.EXTERNAL, entries)
    if is_changed:
        graph.replace(GRAPH.INITIALIZER, tensors)
        message.replace(MODEL.GRAPH, [graph])
    return bytes(message), folder
