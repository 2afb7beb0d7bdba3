"""Finds a model by its name on the Hugging Face hub: fetches it into the hub's cache, or finds it there.

Only the files of a model folder are fetched: settings, tokenizer, template, one graph and its weights; never code or pickles.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import LOG, PackageError
from ..files.text_files import readable
from ..package.locate import find_package
from ..package.manifest import MANIFEST, is_allowed
from ..package.reading import has_manifest, read_manifest
from ..recipes.building import build
from ..recipes.recipe import read_recipe
from .hub_cache import download
from .model_cache import find_cached as find_cached_package
from .model_cache import place_of
from .short_models import build_at_first_use

PREFIX = "hf:"
NO_PARENT = r"(?!(.*[/\\@])?\.\.([/\\@]|$))"
"""Refuses "..", so that a name cannot lead out of the model's folder in the cache."""
ONE_LINE = r"(?!.{300})(?!.*[\x00-\x1f\x7f-\x9f])"
"""Refuses control characters and 300 characters or more."""
HUB_NAME = re.compile(
    NO_PARENT + ONE_LINE + r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(?:/(?P<inside>[^@]+?))?/?(?:@(?P<revision>[^@]+))?", re.DOTALL
)
SETTINGS = re.compile(r"[^/]*\.(json|jinja)")
RECIPE = "onnx-textgen.recipe"
"""The file of a repository by which its weights become the package that somebody has exported and proved."""
NO_GRAPH = "the graph"


class NoGraphError(PackageError):
    """A repository of the hub that holds a model, but no ONNX graph of it."""


@dataclass(frozen=True, slots=True)
class HubName:
    """The name of a model on the hub."""

    repository: str
    """`owner/name`."""
    inside: str = ""
    """A folder or graph in the repository; empty: the top folder."""
    revision: str | None = None
    """None: the newest."""

    @property
    def source(self) -> str:
        """The repository as the exporter and the cache of models call it."""
        return self.repository + (f"@{self.revision}" if self.revision else "")


def locate(package: str | Path | None = None) -> Path:
    """Find the folder (or graph) of an embedded model, a path, a model in the cache, or one on the hub, which is fetched.

    `owner/name` is a name on the hub if there is no such folder. `hf:owner/name` always is one, and may be followed by a folder or
    graph inside and by `@revision`. What has a recipe, a short name or a repository without a graph, is fetched and built once.
    Raises `PackageError` if the model does not exist or cannot be reached.
    """
    name = parse_hub_name(package)
    if name is None:
        found = find_package(package)
        build_at_first_use(package, lambda what: LOG.warning("fetching %s", what))
        cached = find_cached_package(package)
        return found if cached is None or found.exists() else cached  # `exists` raises for a name longer than a file's
    return (None if name.inside else find_cached_package(name.source)) or fetch(name)


def parse_hub_name(package: str | Path | None) -> HubName | None:
    """Parse a name on the hub; returns None for anything else, raises `PackageError` for `hf:` without a valid name.

    >>> parse_hub_name("hf:owner/name/onnx/model_q4.onnx@v1")
    HubName(repository='owner/name', inside='onnx/model_q4.onnx', revision='v1')
    >>> parse_hub_name("./owner/name")
    """
    if not isinstance(package, str):
        return None
    match, has_prefix = HUB_NAME.fullmatch(package.removeprefix(PREFIX)), package.startswith(PREFIX)
    if match is None and has_prefix:
        shown = package if package.isprintable() else repr(package)
        raise PackageError(f"{shown:.200} is not a name on the hub; write hf:owner/name, or hf:owner/name/FOLDER for a folder")
    if match is None or not (has_prefix or (match["inside"] is None and not Path(package).exists())):
        return None
    return HubName(match["repository"], match["inside"] or "", match["revision"])


def fetch(name: HubName) -> Path:
    """Fetch the files that the cache lacks, with the hub's progress bars; returns the path in the cache.

    Without a network, uses the cache alone. Raises `PackageError` if the model is not available.
    """

    def missing(folder: Path) -> str | None:
        if (lacking := missing_file(folder / name.inside)) == NO_GRAPH and not (folder / RECIPE).is_file():
            what = f"the cache has no ONNX graph of {name.repository}, and the hub is not reached"
            raise NoGraphError(f"{what}; try again with a network, HF_HUB_OFFLINE unset")
        return lacking

    choose, instead = (lambda sizes: files_to_fetch([*sizes], name)), "take one of: onnx-textgen list"
    place = download(name.repository, name.revision, choose, missing=missing, instead=instead) / name.inside
    recipe = place / RECIPE
    return build_by(recipe, name) if missing_file(place) == NO_GRAPH and recipe.is_file() else place


def build_by(recipe: Path, name: HubName) -> Path:
    """Make the package of a repository's recipe in the cache of models, from the file of the same repository that it names."""
    source = read_recipe(recipe).origin.name

    def choose(sizes: Mapping[str, int]) -> list[str]:
        if source not in sizes:
            raise PackageError(f"the recipe of {name.repository} is for {source!r:.120}, which is not there; tell its makers")
        return [source]

    def missing(folder: Path) -> str | None:
        return None if (folder / source).is_file() else source

    folder = download(name.repository, name.revision, choose, missing=missing, instead="try again")
    return build(recipe, folder / source, place_of(name.source), force=True)


def missing_file(place: Path) -> str | None:
    """Name a file that a folder (or graph) in the cache lacks; None if it is complete."""
    with readable(place):
        if not place.exists():
            return place.name
    folder = place.parent if place.is_file() else place
    if has_manifest(folder):
        return next((name for name in read_manifest(folder).files if not (folder / name).is_file()), None)
    graphs = [place] if place.is_file() else [*place.glob("*.onnx"), *place.glob("onnx/*.onnx")]
    return None if graphs else NO_GRAPH


def files_to_fetch(files: Sequence[str], name: HubName) -> list[str]:
    """Select the files of a repository that form the model folder: a package, or a graph with its weights and the settings.

    Of an encoder-decoder all its graphs are fetched.

    >>> files = ["README.md", "config.json", "onnx/model.onnx", "onnx/model.onnx_data", "onnx/model_q4.onnx"]
    >>> files_to_fetch(files, HubName("a/b"))
    ['config.json', 'onnx/model.onnx', 'onnx/model.onnx_data']

    Raises `PackageError` if the repository has no graph, or more than one and none with a usual name.
    """
    from ..package.foreign import SUBFOLDER  # noqa: PLC0415  (ONNX Runtime)

    inside = PurePosixPath(name.inside)
    folder = inside.parent if inside.suffix == ".onnx" else inside
    if str(folder / MANIFEST) in files:
        inside_it = {file: PurePosixPath(file).relative_to(folder) for file in files if PurePosixPath(file).is_relative_to(folder)}
        return [file for file, own in inside_it.items() if str(own) == MANIFEST or is_allowed(str(own))]
    graphs = sorted(file for file in files if file.endswith(".onnx") and PurePosixPath(file).parent in (folder, folder / SUBFOLDER))
    chosen = choose_graphs(str(inside) if str(inside) in graphs else None, graphs)
    if not graphs and not name.inside and RECIPE in files:
        return [RECIPE]
    if not chosen:
        raise (PackageError if graphs else NoGraphError)(why_no_graph(files, name))
    folders = {PurePosixPath(chosen[0]).parent, folder, folder.parent if folder.name == SUBFOLDER else folder}
    settings = {file for file in files if PurePosixPath(file).parent in folders and SETTINGS.fullmatch(PurePosixPath(file).name)}
    graphs_and_weights = {file for file in files if file.startswith(chosen)}
    return sorted(settings | graphs_and_weights)


def choose_graphs(wanted: str | None, graphs: Sequence[str]) -> tuple[str, ...]:
    """Choose the graph to open among those of a folder, or the graphs of an encoder-decoder; none if no name is usual.

    `wanted`: the graph that the caller names.
    """
    from ..package.foreign import STEMS, VARIANTS  # noqa: PLC0415
    from ..package.foreign_encoder_decoder import is_encoder, names_of_halves  # noqa: PLC0415

    by_name = {PurePosixPath(file).name: file for file in reversed(graphs)}
    if any(map(is_encoder, by_name)):
        names = names_of_halves(by_name, VARIANTS, wanted and PurePosixPath(wanted).name)
        return tuple(by_name[name] for name in dict.fromkeys(names or ()))
    usual = (f"{stem}{variant}.onnx" for variant, stem in itertools.product(VARIANTS, STEMS))
    chosen = wanted or next((by_name[each] for each in usual if each in by_name), None)
    if chosen is None and len(graphs) == 1:
        chosen = graphs[0]
    return () if chosen is None else (chosen,)


def why_no_graph(files: Sequence[str], name: HubName) -> str:
    """Explain why no graph of a repository was chosen, and what to do."""
    folders = sorted({str(PurePosixPath(file).parent) for file in files if file.endswith(("/" + MANIFEST, ".onnx"))} - {"."})
    at = f"{name.repository}/{name.inside}".rstrip("/")
    if folders:
        return f"{at} has no graph with a usual name; name a folder or graph in it, such as {PREFIX}{name.repository}/{folders[0]}"
    return f"{at} has no ONNX graph; make a model folder from it with: onnx-textgen export {name.repository} --out DIR"
