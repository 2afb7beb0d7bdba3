"""Downloads chosen files of a repository of the Hugging Face hub into the hub's cache, or finds them there without a network.

The environment variables of huggingface_hub apply: HF_HOME for the cache, HF_HUB_OFFLINE to use no network, HF_ENDPOINT for another
hub. huggingface_hub is imported only when it is needed, because the import takes a third of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import PackageError, first_line
from ..package.misnamed import did_you_mean

TIMEOUT_SECONDS = 10.0
"""For the hub's list of a model's files."""


def download(
    repository: str,
    revision: str | None,
    choose: Callable[[Mapping[str, int]], list[str]],
    *,
    missing: Callable[[Path], str | None],
    instead: str,
    report: Callable[[str], None] = lambda stage: None,
) -> Path:
    """Return the repository's folder in the cache, with the files that `choose` selects from their names and sizes in bytes.

    `missing` names what a folder in the cache lacks, which is asked if the hub cannot be reached; `instead`: what a user without a
    network can do. `report` is told what is fetched, or that the cache is used. Raises `PackageError`, and the errors of `choose`
    and `missing`.
    """
    try:
        from huggingface_hub import HfApi, constants, errors, snapshot_download  # noqa: PLC0415
    except ImportError as error:
        raise PackageError(f"{repository} is a name on the hub, which needs: pip install -U huggingface_hub") from error
    network = http_error()
    at = f"{constants.ENDPOINT}/{repository}"
    try:
        found = HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=TIMEOUT_SECONDS).siblings or []
        sizes = {file.rfilename: file.size or 0 for file in found}
        chosen = choose(sizes)
        report(f"fetch {repository}, {sum(sizes[file] for file in chosen) / 1e6:,.1f} MB")
        return Path(snapshot_download(repository, revision=revision, allow_patterns=chosen))
    except errors.GatedRepoError as error:
        raise PackageError(f"{repository} requires that you accept its terms at {at}; do so, then run: hf auth login") from error
    except errors.RevisionNotFoundError as error:
        raise PackageError(f"{repository} has no revision {revision}; see {at}/tree/main, or leave out @{revision}") from error
    except errors.RepositoryNotFoundError as error:
        what = f"there is no folder {repository}, and the hub has no such model or keeps it private"
        raise PackageError(f"{what}; {did_you_mean(Path(repository))}check the name, or run: hf auth login") from error
    except errors.HFValidationError as error:
        raise PackageError(f"{repository} is not a name of a model on the hub: {first_line(error)}") from error
    except errors.OfflineModeIsEnabled:
        why, remedy = "HF_HUB_OFFLINE is set", "unset it once"
    except (OSError, network) as error:
        why, remedy = f"the hub at {constants.ENDPOINT} cannot be reached ({first_line(error)})", "try again with a network"
    if (folder := cached_folder(repository, revision)) is None:
        what = f"there is no folder {repository}, {why}, and the cache in {constants.HF_HUB_CACHE} has no such model"
        raise PackageError(f"{what}; {did_you_mean(Path(repository))}{remedy}, or {instead}")
    if lacking := missing(folder):
        raise PackageError(f"{why}, and the cache lacks {lacking} of {repository}; {remedy}")
    report(f"source: {repository} from the cache")
    return folder


def http_error() -> type[Exception]:
    """What the HTTP library of this huggingface_hub raises where there is no network."""
    from huggingface_hub import errors  # noqa: PLC0415

    found: type[Exception] = vars(errors).get("HTTPError", OSError)
    return found


def cached_folder(repository: str, revision: str | None) -> Path | None:
    """Find a repository's folder in the cache, complete or not; None if there is none."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    try:
        return Path(snapshot_download(repository, revision=revision, local_files_only=True))
    except OSError as error:  # of a folder that lacks files of the repository, which we did not ask for, it names the place
        place = getattr(error, "snapshot_path", None)
        return None if place is None else Path(place)
