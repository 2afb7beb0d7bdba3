"""Where the models of a server come from: model folders, folders of them, and models that the caller has opened."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.api.fetching import fetch_model
from onnx_textgen.api.response_templates import given_template
from onnx_textgen.errors import OptionError
from onnx_textgen.hub.lookup import locate
from onnx_textgen.hub.model_cache import cache_folder
from onnx_textgen.options.defaults import PREFIX_FOLDER
from onnx_textgen.package.foreign import describe_foreign, folder_of, halves_of, is_foreign
from onnx_textgen.package.integrity import package_bytes
from onnx_textgen.package.manifest import MANIFEST, UNKNOWN, Architecture, Manifest
from onnx_textgen.package.misnamed import is_model_folder, model_folders
from onnx_textgen.package.reading import read_manifest

WORKING_TOKENS = 4096
"""Tokens of one text whose keys and values are planned for when a model is opened; a longer text is checked when it begins."""
BYTES_PER_WEIGHT_BYTE = 1.5
"""Memory of an open model, by the bytes of its files: engines copy weights into their own order."""


@dataclasses.dataclass(frozen=True, slots=True)
class Description:
    """Facts about a model that is not open."""

    precision: str = UNKNOWN
    context_length: int | None = None
    """None if only the graph states it."""
    architecture: Architecture = "decoder"
    source_length: int | None = None
    """The most tokens of a source, for an encoder-decoder; None if only its graphs state it."""
    adapters: tuple[str, ...] = ()
    needed_bytes: int = 0
    """Estimate of the memory that the open model takes."""
    size_bytes: int = 0
    """Bytes of its files; 0 if that is not known."""
    digest: str = ""
    """SHA-256 of the manifest, which has the digests of all files; empty if there is none."""


class Source(Protocol):
    """A model that can be opened."""

    @property
    def name(self) -> str:
        """The name by which clients call the model."""

    @property
    def stays_open(self) -> bool:
        """Whether the model is never closed."""

    @property
    def folder(self) -> Path:
        """The model folder."""

    def describe(self) -> Description:
        """Read the description; raises `PackageError`."""

    def open(self) -> Model:
        """Open the model; raises the errors of `onnx_textgen.load`."""


@dataclasses.dataclass(frozen=True, slots=True)
class LoadOptions:
    """How models are opened; see `onnx_textgen.load`."""

    device: str = "auto"
    threads: int | None = None
    batch_size: int = 8
    prefix_folder: Path | None = None
    prefix_folder_bytes: int = PREFIX_FOLDER
    whole_past: bool = False
    exact_history: bool = False
    fetch_images: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class FolderSource:
    """A model folder, or the path of a graph in one."""

    name: str
    place: Path
    options: LoadOptions = dataclasses.field(default_factory=LoadOptions)
    response_template: Path | None = None
    """How answers are divided, instead of the package's own."""
    stays_open: bool = dataclasses.field(default=False, init=False)

    @property
    def folder(self) -> Path:
        """See `Source`."""
        return folder_of(self.place)

    def describe(self) -> Description:
        """See `Source`."""
        if is_foreign(self.place):
            size, length = describe_foreign(self.folder) if self.place.is_dir() else (self.place.stat().st_size, None)
            architecture: Architecture = "decoder" if halves_of(self.place) is None else "encoder-decoder"
            needed = int(BYTES_PER_WEIGHT_BYTE * size)
            return Description(context_length=length, architecture=architecture, needed_bytes=needed, size_bytes=size)
        manifest = read_manifest(self.folder)
        return described(manifest, needed_bytes(self.folder, manifest))

    def open(self) -> Model:
        """See `Source`."""
        return onnx_textgen.load(self.place, response_template=self.response_template, **dataclasses.asdict(self.options))


@dataclasses.dataclass(frozen=True, slots=True)
class OpenSource:
    """A model that the caller has opened, and closes."""

    name: str
    model: Model
    stays_open: bool = dataclasses.field(default=True, init=False)

    @property
    def folder(self) -> Path:
        """See `Source`."""
        return self.model.folder

    def describe(self) -> Description:
        """See `Source`."""
        return described(self.model.manifest)

    def open(self) -> Model:
        """See `Source`."""
        return self.model


def described(manifest: Manifest, needed: int = 0) -> Description:
    """The description of a model by its manifest."""
    encoder = manifest.encoder
    return Description(
        precision=manifest.precision_name,
        context_length=manifest.geometry.context_length if manifest.text_encoder is None else manifest.text_encoder.most_tokens,
        architecture=manifest.architecture,
        source_length=None if encoder is None else encoder.source_length,
        adapters=tuple(manifest.adapters),
        needed_bytes=needed,
        size_bytes=manifest.size_bytes,
        digest=manifest.sha256,
    )


def needed_bytes(folder: Path, manifest: Manifest) -> int:
    """The memory for the weights, twice if there are adapters, and for a text of `WORKING_TOKENS` tokens in float32."""
    sizes = manifest.geometry
    tokens = min(WORKING_TOKENS, sizes.context_length)
    text = tokens * 2 * sizes.layers * sizes.kv_heads * sizes.head_size * 4
    graphs = 2 if manifest.adapters else 1
    return int(graphs * BYTES_PER_WEIGHT_BYTE * package_bytes(folder, manifest)) + text


def find_sources(
    packages: Sequence[str] | Sequence[None], options: LoadOptions, fetch: Callable[[str | None], None] = fetch_model
) -> tuple[list[FolderSource], list[str]]:
    """The models that a command names as `[NAME=]DIR`, and the names of those whose own folder was named.

    A folder of model folders is a model for each of them, by its folder's name. Raises `PackageError`, `OptionError` if two models
    have the same name, and the errors of `fetch`, which gets what is not there.
    """
    sources, own = list[FolderSource](), list[str]()
    for package in packages:
        name, package = split_name(package)  # noqa: PLW2901
        fetch(package)
        place = locate(package)
        if is_folder_of_models(place):
            if name is not None:
                raise OptionError(f"{place} holds several models, which are called by their folders' names; leave out {name}=")
            sources += [FolderSource(name_in(place, inside), inside, options) for inside in visible(model_folders(place))]
        else:
            name = name or (Path(package).name if package else "") or read_manifest(folder_of(place)).name
            sources.append(FolderSource(name, place, options))
            own.append(name)
    names = [each.name for each in sources]
    if len(set(names)) < len(names):
        raise OptionError(f"two models are called {max(names, key=names.count)}; give them names with NAME=DIR")
    return sources, own


def with_response_templates(sources: Sequence[FolderSource], given: Sequence[str]) -> list[FolderSource]:
    """The models with the response templates that a command gives as `[NAME=]FILE`; without a name, there is one model.

    Raises `OptionError` for a model that there is not, and `PackageError` for a template that is not valid.
    """
    found = {source.name: source for source in sources}
    for each in given:
        name, file = split_name(each)
        if name is None and len(found) == 1:
            name = next(iter(found))
        if name not in found or file is None:
            raise OptionError(
                f"--response-template {each} should name one of the models: {', '.join(f'{one}=FILE' for one in found)}"
            )
        given_template(file)  # raises now, not at the first request
        found[name] = dataclasses.replace(found[name], response_template=Path(file))
    return list(found.values())


def split_name(package: str | None) -> tuple[str | None, str | None]:
    """Split an argument into a name and a package, each None if it is not given.

    >>> split_name("large=models/a"), split_name("models/a"), split_name(None)
    (('large', 'models/a'), (None, 'models/a'), (None, None))
    """
    name, equals, folder = (package or "").partition("=")
    return (name, folder) if equals else (None, package)


def is_folder_of_models(place: Path) -> bool:
    """Return whether a path is a folder with model folders directly in it, and not a model folder itself."""
    return place.is_dir() and not is_model_folder(place) and bool(visible(model_folders(place)))


def visible(folders: Iterable[Path]) -> list[Path]:
    """Leave out hidden folders, as unfinished ones are."""
    return [folder for folder in folders if not folder.name.startswith(".")]


def name_in(place: Path, folder: Path) -> str:
    """The name of a model folder in `place`; the cache of models quotes names."""
    return unquote(folder.name) if place.absolute() == cache_folder().absolute() else folder.name


def description_file(folder: Path) -> Path:
    """The file whose change means that a description may have changed."""
    manifest = folder / MANIFEST
    return manifest if manifest.exists() else folder
