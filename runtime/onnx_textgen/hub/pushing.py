"""Uploads a model folder, or a recipe, to a repository of the Hugging Face hub, in one commit.

huggingface_hub finds the token (`hf auth login`, `HF_TOKEN`); this code never reads it. The environment variables of `hub_cache`
apply.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import PackageError, first_line
from ..package.manifest import MANIFEST

CARD = "README.md"
MARK = "<!-- made by: onnx-textgen push -->"
"""In a card of ours; another one is not replaced."""


def push(
    repository: str, files: Mapping[str, Path], card: str, *, private: bool, report: Callable[[str], None] = lambda stage: None
) -> str:
    """Upload files by their names in the repository, which is made if there is none; returns its address.

    card: the text of README.md; None of the repository's, if it has one that is not ours. Files of an earlier package that this one
    has not are deleted. `private` holds for a new repository. Raises `PackageError`.
    """
    try:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi  # noqa: PLC0415
    except ImportError as error:
        raise PackageError("push needs: pip install -U huggingface_hub") from error
    api = HfApi()
    size = sum(path.stat().st_size for path in files.values())
    with upload_errors(repository):
        address = str(api.create_repo(repository, private=private, exist_ok=True))
        if private and not api.repo_info(repository).private:
            raise PackageError(f"{repository} is public already; make it private on its page, or leave out --private")
        there = set(api.list_repo_files(repository))
        report(f"upload {len(files)} files to {repository}, {size / 1e6:,.1f} MB")
        adds = {name: CommitOperationAdd(name, str(path)) for name, path in files.items()}
        if CARD not in there or MARK in content(api, repository, CARD).decode(errors="replace"):
            adds[CARD] = CommitOperationAdd(CARD, card.encode())
        stale = (earlier_files(api, repository) if MANIFEST in there & adds.keys() else set()) & there - adds.keys()
        operations: list[Any] = [*adds.values(), *(CommitOperationDelete(name) for name in sorted(stale))]
        api.create_commit(repository, operations, commit_message="Upload by onnx-textgen")
    return address


def check_login(repository: str) -> None:
    """Raise `PackageError` unless the hub knows the user, and a repository can have this name."""
    from huggingface_hub import HfApi  # noqa: PLC0415

    with upload_errors(repository):
        api = HfApi()
        api.repo_exists(repository)
        api.whoami()


def content(api: Any, repository: str, name: str) -> bytes:  # noqa: ANN401 - HfApi is imported late
    """The content of a file of a repository."""
    return Path(api.hf_hub_download(repository, name)).read_bytes()


def earlier_files(api: Any, repository: str) -> set[str]:  # noqa: ANN401 - likewise
    """The files of the package that a repository holds; none if its manifest cannot be read."""
    try:
        return set(json.loads(content(api, repository, MANIFEST))["files"])
    except (ValueError, KeyError, TypeError):
        return set()


@contextlib.contextmanager
def upload_errors(repository: str) -> Iterator[None]:
    """Raise what the hub answers as one line; it never holds the token."""
    from huggingface_hub import constants, errors  # noqa: PLC0415

    network: type[Exception] = vars(errors).get("HTTPError", OSError)  # depends on the HTTP library of this huggingface_hub
    unknown = "the hub does not know you; run: hf auth login, with a token that may write"
    try:
        yield
    except errors.LocalTokenNotFoundError as error:
        raise PackageError(unknown) from error
    except errors.HFValidationError as error:
        raise PackageError(f"{repository} is not a name on the hub: {first_line(error)}") from error
    except errors.OfflineModeIsEnabled as error:
        raise PackageError("HF_HUB_OFFLINE is set, and a push needs the hub; unset it once") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status == 401:
            raise PackageError(unknown) from error
        if status in (403, 404):
            owner = repository.partition("/")[0]
            raise PackageError(f"the hub refuses {repository}: your token may not write to {owner}; take another") from error
        raise PackageError(f"the hub answered with an error ({first_line(error)}); try again") from error
    except (OSError, network, RuntimeError) as error:
        raise PackageError(f"the hub at {constants.ENDPOINT} cannot be reached ({first_line(error)}); try again") from error
