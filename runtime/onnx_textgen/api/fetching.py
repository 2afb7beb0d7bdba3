"""Gets the model that a command names: one of the hub without an ONNX graph is exported once, into the cache of models.

Another package exports: by a function in the entry-point group `onnx_textgen.exporters`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .. import extras

GROUP = "onnx_textgen.exporters"

Exporter = Callable[[str, Path, str, str | None, str | None], None]
"""`make_package(source, folder, name, origin, precision)`: exports a source, with its stages on stderr, and replaces the folder."""


def fetch_model(
    model: str | None, say: Callable[[str], None] = lambda _: None, report: Callable[[str], None] = lambda _: None
) -> None:
    """Make sure that `onnx_textgen.load(model)` opens something, where `model` is a name on the hub that is not in the cache.

    A short name with a recipe is fetched and built; `say` gets what that will be, `report` how far it is, and at the end an empty
    text. A repository with an ONNX graph is fetched by `load`. Raises `PackageError` if there is no such model, and
    `ExtensionError` if it has to be exported and the exporter is not installed.
    """
    from ..hub.lookup import NoGraphError, locate, parse_hub_name  # noqa: PLC0415
    from ..hub.model_cache import find_cached, place_of  # noqa: PLC0415
    from ..hub.short_models import build_at_first_use  # noqa: PLC0415

    build_at_first_use(model, say, report)
    name = parse_hub_name(model)
    if name is None or name.inside or find_cached(name.source) is not None:
        return
    try:
        locate(model)
    except NoGraphError:
        make = find_exporter(f"{name.repository} has no ONNX graph. Making one")
        make(name.source, place_of(name.source), name.repository.partition("/")[2], None, None)


def find_exporter(wanting: str) -> Exporter:
    """Load the exporter; raises `ExtensionError`, which begins with `wanting`, if its package is missing."""
    found: Exporter = extras.load_function(GROUP, wanting)
    return found
