"""A model by its name on the Hugging Face hub: fetched into the hub's own cache, or found there.

Only what a model folder has is fetched: settings, tokenizer, template, one graph and its weights; never code, never pickles. The
variables of huggingface_hub hold: HF_HOME for the cache, HF_HUB_OFFLINE to stay off the network, HF_ENDPOINT for another hub. It is
imported where a name asks for it, since that takes a third of a second.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import PackageError, first_line
from ..files.text_files import readable
from .locate import find_package
from .manifest import ALLOWED_FILES, MANIFEST
from .misnamed import did_you_mean
from .reading import has_manifest, read_manifest

PREFIX = "hf:"
NO_WAY_OUT = r"(?!(.*[/\\@])?\.\.([/\\@]|$))"
"""No part is "..": a name leads to nothing beside the model's own folder in the cache."""
ONE_LINE = r"(?!.{300})(?!.*[\x00-\x1f\x7f-\x9f])"
FORM = re.compile(
    NO_WAY_OUT + ONE_LINE + r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(?:/(?P<inside>[^@]+?))?/?(?:@(?P<revision>[^@]+))?", re.DOTALL
)
SETTINGS = re.compile(r"[^/]*\.(json|jinja)")
SECONDS = 10.0
"""For the hub to answer what a model consists of."""


@dataclass(frozen=True, slots=True)
class HubName:
    """`owner/name`, a folder or a graph inside where it is not the top, and a revision where it is not the newest."""

    repository: str
    inside: str = ""
    revision: str | None = None


def locate(package: str | Path | None = None) -> Path:
    """The folder (or graph) of what a caller names: an embedded model, a path, or a model of the hub, which is fetched.

    `owner/name` is the hub's where there is no such folder; `hf:owner/name`, which may go on with a folder or a graph inside and
    with `@revision`, always. Raises `PackageError` for what is not there, or cannot be reached.
    """
    name = read_name(package)
    return find_package(package) if name is None else fetch(name)


def read_name(package: str | Path | None) -> HubName | None:
    """The name on the hub that a text is; None where it is none.

    >>> read_name("hf:owner/name/onnx/model_q4.onnx@v1")
    HubName(repository='owner/name', inside='onnx/model_q4.onnx', revision='v1')
    >>> read_name("./owner/name")
    """
    if not isinstance(package, str):
        return None
    match, is_marked = FORM.fullmatch(package.removeprefix(PREFIX)), package.startswith(PREFIX)
    if match is None and is_marked:
        shown = package if package.isprintable() else repr(package)
        raise PackageError(f"{shown:.200} is no name on the hub; write hf:owner/name, or hf:owner/name/FOLDER for one inside")
    if match is None or not (is_marked or (match["inside"] is None and not Path(package).exists())):
        return None
    return HubName(match["repository"], match["inside"] or "", match["revision"])


def fetch(name: HubName) -> Path:
    """Fetch what the cache lacks, under the hub's own progress bars; without a network take what it has. The place in the cache."""
    try:
        from huggingface_hub import HfApi, constants, errors, snapshot_download  # noqa: PLC0415
    except ImportError as error:
        raise PackageError(f"{name.repository} is a name on the hub, which needs: pip install -U huggingface_hub") from error
    repository, revision = name.repository, name.revision
    network: type[Exception] = vars(errors).get("HTTPError", OSError)  # of the HTTP library that this huggingface_hub uses
    try:
        found = HfApi().model_info(repository, revision=revision, timeout=SECONDS).siblings or []
        files = wanted([file.rfilename for file in found], name)
        return Path(snapshot_download(repository, revision=revision, allow_patterns=files)) / name.inside
    except errors.GatedRepoError as error:
        what = f"{repository} is only given to those who accept its terms at {constants.ENDPOINT}/{repository}"
        raise PackageError(f"{what}; do so, then run: hf auth login") from error
    except errors.RevisionNotFoundError as error:
        raise PackageError(f"{repository} has no revision {revision}; leave @{revision} out, or name another") from error
    except errors.RepositoryNotFoundError as error:
        what = f"there is no folder {repository}, and the hub has no such model or keeps it private"
        raise PackageError(f"{what}; {did_you_mean(Path(repository))}check the name, or run: hf auth login") from error
    except errors.HFValidationError as error:
        raise PackageError(f"{repository} is no name of a model on the hub: {first_line(error)}") from error
    except errors.OfflineModeIsEnabled as error:
        return cached(name, "HF_HUB_OFFLINE is set", "unset it once", error)
    except (OSError, network) as error:
        return cached(name, f"the hub cannot be reached ({first_line(error)})", "try again with a network", error)


def cached(name: HubName, why: str, remedy: str, error: Exception) -> Path:
    """The place of a model in the cache, where the hub gave `error`; raises `PackageError` where it is not there, or in part."""
    from huggingface_hub import constants, snapshot_download  # noqa: PLC0415

    try:
        folder = snapshot_download(name.repository, revision=name.revision, local_files_only=True)
    except OSError:
        what = f"there is no folder {name.repository}, {why}, and the cache in {constants.HF_HUB_CACHE} has no such model"
        hint = did_you_mean(Path(name.repository))
        raise PackageError(f"{what}; {hint}{remedy}, or take one of: onnx-textgen list") from error
    place = Path(folder) / name.inside
    if missing := missing_file(place):
        raise PackageError(f"{why}, and the cache lacks {missing} of {name.repository}; {remedy}") from error
    return place


def missing_file(place: Path) -> str | None:
    """What a folder (or graph) in the cache lacks to be opened; None where nothing is missing."""
    with readable(place):
        if not place.exists():
            return place.name
    folder = place.parent if place.is_file() else place
    if has_manifest(folder):
        return next((name for name in read_manifest(folder).files if not (folder / name).is_file()), None)
    graphs = [place] if place.is_file() else [*place.glob("*.onnx"), *place.glob("onnx/*.onnx")]
    return None if graphs else "the graph"


def wanted(files: Sequence[str], name: HubName) -> list[str]:
    """Those of a repository's files that make the model folder: by its manifest, or one graph with what lies beside it.

    >>> wanted(["README.md", "config.json", "onnx/model.onnx", "onnx/model.onnx_data", "onnx/model_q4.onnx"], HubName("a/b"))
    ['config.json', 'onnx/model.onnx', 'onnx/model.onnx_data']
    """
    from .foreign import STEMS, SUBFOLDER, VARIANTS  # noqa: PLC0415  (ONNX Runtime)

    inside = PurePosixPath(name.inside)
    folder = inside.parent if inside.suffix == ".onnx" else inside
    if str(folder / MANIFEST) in files:
        return [file for file in files if file in {str(folder / each) for each in (MANIFEST, *ALLOWED_FILES)}]
    graphs = sorted(file for file in files if file.endswith(".onnx") and PurePosixPath(file).parent in (folder, folder / SUBFOLDER))
    usual = [f"{stem}{variant}.onnx" for variant, stem in itertools.product(VARIANTS, STEMS)]
    by_name = {PurePosixPath(file).name: file for file in reversed(graphs)}
    chosen = str(inside) if str(inside) in graphs else next((by_name[each] for each in usual if each in by_name), None)
    if chosen is None and len(graphs) == 1:
        chosen = graphs[0]
    if chosen is None:
        raise PackageError(no_graph(files, name))
    homes = {PurePosixPath(chosen).parent, folder, folder.parent if folder.name == SUBFOLDER else folder}
    beside = {file for file in files if PurePosixPath(file).parent in homes and SETTINGS.fullmatch(PurePosixPath(file).name)}
    weights = {file for file in files if file.startswith(chosen)}
    return sorted(beside | weights)


def no_graph(files: Sequence[str], name: HubName) -> str:
    """Why a repository gives no model, and what to do."""
    places = sorted({str(PurePosixPath(file).parent) for file in files if file.endswith(("/" + MANIFEST, ".onnx"))} - {"."})
    at = f"{name.repository}/{name.inside}".rstrip("/")
    if places:
        return f"{at} has no graph of a usual name; name a folder or graph inside, such as {PREFIX}{name.repository}/{places[0]}"
    return f"{at} has no ONNX graph; make a model folder of it with: onnx-textgen export {name.repository} --out DIR"
