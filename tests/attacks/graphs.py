"""Graphs to be changed, as packages whose manifest has their right sha256, and as folders of another exporter's, without one."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import onnx

from onnx_textgen.package.integrity import file_record
from onnx_textgen.package.manifest import GRAPH, MANIFEST, WEIGHTS, manifest_to_json
from onnx_textgen.package.reading import read_manifest
from support.cache_graphs import Attention, Builder, Recurrent, Tiny

from .law import PACKAGE, Verdict, check_command, judged, open_model

TINY = Tiny((Attention(0), Recurrent(1), Attention(2, 2, 6, 4)))
PROMPT, TOKENS, MAX_TIME = [5, 9, 1, 3], 4, 2.0
Model = onnx.ModelProto


@functools.cache
def written(tiny: Tiny) -> bytes:
    """A graph with its weights."""
    content: bytes = Builder(tiny).model().SerializeToString()
    return content


def parsed(tiny: Tiny = TINY) -> Model:
    """A graph to be changed."""
    return Model.FromString(written(tiny))


def write(content: bytes, folder: Path, *, ours: bool, tiny: Tiny = TINY) -> None:
    """Write a graph as a package, with the manifest that goes with it, or as another exporter's folder."""
    (folder / GRAPH).write_bytes(content)
    if ours:
        files = {name: file_record(folder / name) for name in (GRAPH, WEIGHTS) if (folder / name).is_file()}
        changes = {"geometry": tiny.geometry, "eos_ids": (), "bos_id": None, "files": files, "golden": ()}
        (folder / MANIFEST).write_text(manifest_to_json(dataclasses.replace(read_manifest(PACKAGE), **changes)), encoding="utf-8")
    else:
        (folder / "config.json").write_text('{"vocab_size": 29, "max_position_embeddings": 96}', encoding="utf-8")


def generate(folder: Path) -> tuple[int, ...]:
    """What the model of a folder writes."""
    return open_model(folder).generate(PROMPT, max_new_tokens=TOKENS, temperature=0, max_time=MAX_TIME).token_ids


def try_all(folder: Path, *, scores: bool = True) -> Verdict:
    """Open, describe, generate and score with a model: any text is harmless, it is another model."""
    check_command("info", str(folder))

    def use() -> object:
        model = open_model(folder)
        model.generate([PROMPT, [1]], max_new_tokens=TOKENS, temperature=0, max_time=MAX_TIME)
        return model.score(PROMPT) if scores else None

    return judged(use)
