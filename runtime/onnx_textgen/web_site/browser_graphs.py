"""Chooses the graph of a model folder for each device of a browser, and finds the files of weights that it reads.

The site's description names them, so that the browser decides nothing by the names of files.
"""

from __future__ import annotations

import dataclasses
import posixpath
from pathlib import Path

from ..errors import PackageError
from ..files.graph_file import external_files, map_model
from ..package.manifest import GRAPH, VISION_ENCODER_GRAPH, WASM_GRAPH, Manifest, picture_decoder, shared_graph

LARGEST_FILE = 2**31 - 1
"""Bytes that a browser can hold in one piece."""


@dataclasses.dataclass(frozen=True, slots=True)
class BrowserGraph:
    """A graph for one device."""

    graph: str
    """Its file in the model folder."""
    data: dict[str, str]
    """Files of weights in the model folder, by the location that the graph names for each."""

    @property
    def files(self) -> list[str]:
        """All its files."""
        return [self.graph, *self.data.values()]


def browser_graphs(folder: Path, manifest: Manifest) -> dict[str, BrowserGraph]:
    """The graph for each device of a browser, `wasm` and `webgpu`; the files of weights are checked to be ones of the manifest.

    Raises `PackageError` for a folder without a graph for browsers, or with a file that is too large for them.
    """
    reading = picture_decoder(manifest)
    names = {
        "wasm": WASM_GRAPH if WASM_GRAPH in manifest.files else reading or GRAPH,
        "webgpu": reading or shared_graph(manifest) or GRAPH,
    }
    return {device: browser_graph(folder, manifest, name) for device, name in names.items()}


def vision_graph(folder: Path, manifest: Manifest) -> BrowserGraph | None:
    """The graph that reads pictures, the same for every device; None if the model reads none in a browser."""
    return browser_graph(folder, manifest, VISION_ENCODER_GRAPH) if picture_decoder(manifest) else None


def browser_graph(folder: Path, manifest: Manifest, name: str) -> BrowserGraph:
    """A graph with the files of weights that it names."""
    if name not in manifest.files:
        raise PackageError(f"{folder} has no {name}; export the model again")
    with map_model(folder / name) as content:
        locations = sorted(set(external_files(content)))
    # Locations are relative to the folder of the graph.
    data = {location: posixpath.normpath(posixpath.join(posixpath.dirname(name), location)) for location in locations}
    for file in (name, *data.values()):
        if file not in manifest.files:
            raise PackageError(f"{name} reads {file!r:.80}, which the manifest does not list; export the model again")
        if (size := manifest.files[file].size) > LARGEST_FILE:
            raise PackageError(
                f"{file} has {size / 1e9:.1f} GB, and browsers hold at most {LARGEST_FILE / 1e9:.1f} GB in one piece; "
                "export the model with --precision int4, or take a smaller one"
            )
    return BrowserGraph(name, data)
