"""The embedded model with LoRA adapters of random numbers: its linear layers are found in the graph, as its exporter is older."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import onnx

import onnx_textgen
from onnx_textgen.backends.variants.adapter_file import LowRank, write_adapter
from onnx_textgen.backends.variants.linear_layers import KEY, LinearLayer, LinearLayers
from onnx_textgen.package.integrity import file_record
from onnx_textgen.package.manifest import GRAPH, MANIFEST, AdapterRecord, adapter_file, manifest_to_json

RANK = 4


def make_adapted_story(folder: Path, *names: str) -> Path:
    """Copy the embedded model, and add adapters of these names."""
    story = onnx_textgen.load(threads=1, device="cpu")
    shutil.copytree(story.folder, folder)
    graph = onnx.load(folder / GRAPH, load_external_data=False)
    layers = [
        LinearLayer(node.input[0], node.output[0], sizes["K"], ((node.output[0], np.arange(sizes["N"])),))
        for node in graph.graph.node
        if node.op_type == "MatMulNBits" and (sizes := {each.name: each.i for each in node.attribute})
    ]
    onnx.helper.set_model_props(graph, {KEY: LinearLayers(tuple(layers), "float32").to_json()})
    onnx.save(graph, folder / GRAPH)
    files = {**story.manifest.files, GRAPH: file_record(folder / GRAPH)}
    for seed, name in enumerate(names):
        draw = np.random.default_rng(seed)
        changes = {
            each.output: LowRank(
                draw.normal(size=(each.inputs, RANK)).astype(np.float32) / 8,
                draw.normal(size=(RANK, each.outputs)).astype(np.float32) / 8,
            )
            for each in layers
        }
        write_adapter(folder / adapter_file(name), changes)
        files[adapter_file(name)] = file_record(folder / adapter_file(name))
    adapters = {name: AdapterRecord(RANK, len(layers)) for name in names}
    manifest = dataclasses.replace(story.manifest, files=files, adapters=adapters)
    (folder / MANIFEST).write_text(manifest_to_json(manifest), encoding="utf-8")
    return folder
