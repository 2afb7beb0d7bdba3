"""Opens a model folder: a package after checking every hash, or another exporter's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..backends.huge_pages import new_memory_in_huge_pages
from ..backends.onnxruntime_session import open_session
from ..backends.openvino.session import PRECISIONS, open_openvino
from ..backends.protocol import Graph
from ..errors import DeviceError
from ..files.text_files import read_text
from ..package.end_tokens import read_template
from ..package.foreign import folder_of, graph_of, is_foreign, open_foreign
from ..package.integrity import checking_files
from ..package.manifest import CHAT_TEMPLATE, GRAPH, INT8_CACHE_GRAPH, Manifest
from ..package.reading import read_manifest
from ..text.tokenizer import TextTokenizer


class OpenPackage(NamedTuple):
    """Open parts of a model folder."""

    manifest: Manifest
    path: Path
    """Of the graph."""
    graph: Graph
    template: str | None
    """The chat template."""
    tokenizer: TextTokenizer | None = None
    """None: there is none, or it was not read."""


def open_package(
    place: Path, *, device: str, threads: int | None, whole_past: bool, meanwhile: Callable[[Path, Manifest], TextTokenizer | None]
) -> OpenPackage:
    """Open a package or another exporter's folder; `meanwhile`, called while an engine opens the graph, returns the tokenizer."""
    folder, graph = folder_of(place), Path(GRAPH)
    session: Graph
    tokenizer = None
    if is_foreign(place):
        if device in PRECISIONS:
            raise DeviceError(f"OpenVINO runs packages that onnx-textgen exported; take another device than {device} for {place}")
        with new_memory_in_huge_pages():
            manifest, session = open_foreign(place, device=device, threads=threads)
        template = read_template(folder)
    else:
        manifest, graph = read_manifest(folder), graph_of(place)
        with new_memory_in_huge_pages(), checking_files(folder, manifest, graph) as pool:
            called = pool.submit(meanwhile, folder, manifest)
            session = open_graph(graph, device=device, threads=threads, is_exact=manifest.is_exact, whole_past=whole_past)
            tokenizer = called.result()
        template = listed_template(folder, manifest)
    return OpenPackage(manifest, graph, session, template, tokenizer)


def listed_template(folder: Path, manifest: Manifest) -> str | None:
    """The chat template that a manifest lists, checked by its hash; None if it lists none, even if the folder has such a file."""
    listed = manifest.files.get(CHAT_TEMPLATE)
    return None if listed is None else read_text(folder / CHAT_TEMPLATE, sha256=listed.sha256)


def open_graph(path: Path, *, device: str, threads: int | None, is_exact: bool, whole_past: bool) -> Graph:
    """Open the graph at `path` on the engine that `device` names; `is_exact`: see `Manifest.is_exact`; `whole_past`: see `load`."""
    if device in PRECISIONS and path.name == INT8_CACHE_GRAPH:
        raise DeviceError(f"OpenVINO stores keys and values in its own format; give it the folder {path.parent}")
    if device in PRECISIONS:
        return open_openvino(path, device=device, threads=threads, is_exact=is_exact)
    return open_session(path, device=device, threads=threads, whole_past=whole_past)
