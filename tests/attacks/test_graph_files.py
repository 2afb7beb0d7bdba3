"""Graphs whose numbers lie in files that are none of theirs, or at odd places of their own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from onnx_textgen.package.manifest import GRAPH, MANIFEST, WEIGHTS
from support.examples import examples

from .graphs import PROMPT, TINY, TOKENS, Model, generate, parsed, try_all, write
from .law import Cell, Verdict, judged, refused

IN_MEMORY = "*/_ORT_MEM_ADDR_/*"
ADDRESSES = (0, 1, 4096, 0x400000, 2**47 - 4096, 2**63 - 1)
OFFSETS = (2**20, -1, 2**63 - 1, 2**64, "x", 1)
KEY_PLACES: tuple[dict[str, object], ...] = (
    *({"offset": offset} for offset in OFFSETS),
    *({"length": length} for length in (0, -4, 2**63 - 1, 16)),
)
"""What a graph may say of where its numbers lie in its own file."""


def outside(model: Model, location: str, **more: object) -> None:
    """Let the embedding lie in another file; what it is, goes out of the graph."""
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=str(value))


def linked(folder: Path, name: str, target: Path) -> str:
    """The name of a link in the folder."""
    (folder / name).symlink_to(target)
    return name


def make_pipe(folder: Path, _: Path) -> str:
    """A pipe in the folder, which nobody writes to."""
    os.mkfifo(folder / "pipe.data")
    return "pipe.data"


LOCATIONS: dict[str, Callable[[Path, Path], str]] = {
    "in the folder above": lambda _, secret: f"../{secret.name}",
    "above by a detour": lambda _, secret: f"./x/../../{secret.name}",
    "above, with backslashes": lambda _, secret: f"..\\{secret.name}",
    "above, behind many slashes": lambda _, secret: f".//..///{secret.name}",
    "by its whole path": lambda _, secret: str(secret),
    "by its whole path, which begins twice": lambda _, secret: f"/{secret}",
    "as a URL": lambda _, secret: secret.as_uri(),
    "with an end of text in its name": lambda _, secret: f"../{secret.name}\0{WEIGHTS}",
    "behind a link": lambda folder, secret: linked(folder, "link.data", secret),
    "behind a link with the name of weights": lambda folder, secret: linked(folder, f"{GRAPH}_data", secret),
    "behind a link to a folder": lambda folder, secret: f"{linked(folder, 'linked', secret.parent)}/{secret.name}",
    "in /proc": lambda *_: "/proc/self/environ",
    "in a device without end": lambda *_: "/dev/zero",
    "in a device above": lambda *_: "../../../../../../../../dev/zero",
    "in a pipe": make_pipe,
    "in the folder itself": lambda *_: ".",
    "in no file": lambda *_: "",
    "in a file with a long name": lambda *_: "x" * 10_000,
    "in the graph": lambda *_: GRAPH,
    "in the manifest": lambda *_: MANIFEST,
    "at home": lambda *_: "~/.bashrc",
    "in the memory of the engine": lambda *_: IN_MEMORY,
    "in the memory of the engine, as constants are": lambda *_: "_ORT_MEM_ADDR_",
}


def from_elsewhere(root: Path, where: str, ours: bool) -> Verdict:
    """Let the embedding, as it should be, lie where it may not be read: only who reads it there writes the right text."""
    folder, secret, model = root / "folder", root / "secret", parsed()
    folder.mkdir()
    raw = model.graph.initializer[0].raw_data
    secret.write_bytes(raw)
    outside(model, LOCATIONS[where](folder, secret), offset=0, length=len(raw))
    write(model.SerializeToString(), folder, ours=ours)
    right = tuple(TINY.greedy(PROMPT, TOKENS))
    return judged(lambda: generate(folder), lambda found: not ours and found != right)


def oddly_placed(folder: Path, where: dict[str, object], ours: bool) -> Verdict:
    """Let the embedding lie in its own file, and the graph say odd things of where."""
    model = parsed()
    raw = model.graph.initializer[0].raw_data
    (folder / WEIGHTS).write_bytes(raw)
    outside(model, WEIGHTS, **{"offset": 0, "length": len(raw), **where})
    write(model.SerializeToString(), folder, ours=ours)
    return try_all(folder)


def in_memory(folder: Path, address: int, ours: bool) -> Verdict:
    """Let the embedding lie at some address, by the mark that ONNX Runtime puts there for itself."""
    model = parsed()
    outside(model, IN_MEMORY, offset=address, length=len(model.graph.initializer[0].raw_data))
    write(model.SerializeToString(), folder, ours=ours)
    return refused(lambda: generate(folder))


PLACES = [
    *itertools.product([from_elsewhere], LOCATIONS),
    *itertools.product([oddly_placed], KEY_PLACES),
    *itertools.product([in_memory], ADDRESSES),
]


@examples(40)
@given(st.sampled_from(PLACES), st.booleans())
def test_a_graph_reads_only_files_in_its_folder_and_a_packages_graph_only_those_that_its_manifest_lists(
    cell: Cell, place: tuple[Callable[..., Verdict], Any], ours: bool
) -> None:
    cell.hold(*place, ours)
