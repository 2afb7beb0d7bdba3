"""Uploads a model folder, or a recipe, to a repository of the Hugging Face hub, in one commit.

huggingface_hub finds the token (`hf auth login`, `HF_TOKEN`); this code never reads it. The environment variables of `hub_cache`
apply.
"""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import OptionError, PackageError, first_line
from ..options.checks import shown
from ..package.manifest import MANIFEST
from .hub_cache import http_error

CARD = "README.md"
MARK = "<!-- made by: onnx-textgen push -->"
"""In a card of ours; another one is not replaced."""
NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
"""Of a repository; it goes into the card."""


class Pushed(NamedTuple):
    """What was uploaded."""

    address: str
    has_card: bool
    """Whether the card is ours."""


def push(
    repository: str, files: Mapping[str, Path], card: str, *, private: bool, report: Callable[[str], None] = lambda stage: None
) -> Pushed:
    """Upload files by their names in the repository, which is made if there is none.

    card: the text of README.md, unless the repository has one that is not ours. Files of an earlier package that this one has not
    are deleted. `private`: a new repository is private, and a public one is refused. Raises `PackageError`.
    """
    try:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi  # noqa: PLC0415
    except ImportError as error:
        raise PackageError("push needs: pip install -U huggingface_hub") from error
    api = HfApi()
    size = sum(path.stat().st_size for path in files.values())
    with upload_errors(repository):
        check_card(card)
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
    return Pushed(address, CARD in adds)


def check_name(what: str, name: str) -> None:
    """Raise `OptionError` unless a text can be the name of a repository; `what` begins the message."""
    if not NAME.fullmatch(name):
        raise OptionError(f"{what} should be OWNER/NAME, found {shown(name)}")


def check_login(repository: str) -> None:
    """Raise `OptionError` or `PackageError` unless the hub knows the user, and the user may write to the repository's owner."""
    check_name("the repository", repository)
    from huggingface_hub import HfApi  # noqa: PLC0415

    with upload_errors(repository):
        user = HfApi().whoami()
    owner = repository.partition("/")[0]
    if owner not in {user["name"], *(each["name"] for each in user.get("orgs", ()))}:
        raise PackageError(f"the hub knows you as {user['name']}, who is not in {owner}; take another name or token")


def check_card(card: str) -> None:
    """Ask the hub whether it takes a card's fields, before anything is made there; raises `ValueError`."""
    from huggingface_hub import ModelCard  # noqa: PLC0415

    ModelCard(card).validate(repo_type="model")


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
    """Raise what the hub answers as one line, which never holds the token; leave out its advice on cards."""
    from huggingface_hub import constants, errors  # noqa: PLC0415

    unknown = "the hub does not know you; run: hf auth login, with a token that may write"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
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
    except ValueError as error:  # of the card's fields, see `check_card`
        raise PackageError(f"the hub refuses the card's fields ({first_line(error)}); give others") from error
    except (OSError, http_error(), RuntimeError) as error:
        raise PackageError(f"the hub at {constants.ENDPOINT} cannot be reached ({first_line(error)}); try again") from error
