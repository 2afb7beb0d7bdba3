"""Gets the model that a command names: one of the hub without an ONNX graph is exported once, into the cache of models.

Another package exports: by a function in the entry-point group `onnx_textgen.exporters`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from . import extensions

GROUP = "onnx_textgen.exporters"

Exporter = Callable[[str, Path, str, str | None, str | None], None]
"""`make_package(source, folder, name, origin, precision)`: exports a source, with its stages on stderr, and replaces the folder."""


def fetch_model(model: str | None) -> None:
    """Make sure that `onnx_textgen.load(model)` opens something, where `model` is a name on the hub that is not in the cache.

    A repository with an ONNX graph is fetched by `load`. Raises `PackageError` if there is no such model, and `ExtensionError` if
    it has to be exported and the exporter is not installed.
    """
    from ..package.hub import NoGraphError, locate, parse_hub_name  # noqa: PLC0415
    from ..package.model_cache import find_cached, place_of  # noqa: PLC0415

    name = parse_hub_name(model)
    if model is None or name is None or find_cached(model) is not None:
        return
    try:
        locate(model)
    except NoGraphError:
        if name.inside:
            raise
        make = find_exporter(f"{name.repository} has no ONNX graph. Making one")
        make(name.source, place_of(model.removeprefix("hf:")), name.repository.partition("/")[2], None, None)


def find_exporter(wanting: str) -> Exporter:
    """Load the first function of the group; raises `ExtensionError`, beginning with `wanting`, if its package is missing."""
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    if not points:
        raise extensions.ExtensionError(f"{wanting} needs the exporter; {extensions.remedy('export')}")
    with extensions.explain_missing(wanting, "export"):
        found: Exporter = points[0].load()
        return found
