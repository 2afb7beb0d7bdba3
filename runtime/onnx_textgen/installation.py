"""Where this installation came from, and the commands of pip that extend, upgrade or repair it from there.

pip records it (PEP 610): a checkout, a wheel's file, a repository; nothing if the package index was asked by name.
"""

from __future__ import annotations

import json
from typing import Any

NAME = "onnx-textgen"


def add_extra(extra: str) -> str:
    """The command that adds an optional part."""
    return f"pip install {requirement(f'[{extra}]')}"


def upgrade() -> str:
    """The command that installs a newer version."""
    record = origin()
    path = folder_of(record)
    if path is None:
        return f"pip install -U {requirement('')}"
    return f'git -C "{path}" pull' + ("" if is_editable(record) else f' && pip install "{path}"')


def reinstall() -> str:
    """The command that writes the files of this version again."""
    return f"pip install --force-reinstall --no-deps {requirement('')}"


def requirement(extras: str) -> str:
    """What pip is given to install from the same place; `extras`: empty, or in brackets."""
    record = origin()
    url = record.get("url", "")
    if (path := folder_of(record)) is not None:
        return f'{"-e " if is_editable(record) else ""}"{path}{extras}"'
    if (vcs := record.get("vcs_info")) is not None:
        return f'"{NAME}{extras} @ {vcs["vcs"]}+{url}"'
    if not url:
        return f'"{NAME}{extras}"' if extras else NAME
    return f'"{path_of(url)}{extras}"' if url.startswith("file:") else f'"{NAME}{extras} @ {url}"'


def origin() -> dict[str, Any]:
    """What pip recorded; empty for the package index, and where nothing is recorded, as in a frozen app."""
    from importlib import metadata  # noqa: PLC0415 - its import takes a twentieth of the time in which a model opens

    try:
        found = json.loads(metadata.distribution(NAME).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_editable(record: dict[str, Any]) -> bool:
    """Whether a checkout is used in place."""
    return bool(record.get("dir_info", {}).get("editable"))


def folder_of(record: dict[str, Any]) -> str | None:
    """The checkout of an installation; None for one from elsewhere."""
    return path_of(record["url"]) if "dir_info" in record else None


def path_of(url: str) -> str:
    """The path of a file's URL."""
    from urllib.parse import urlsplit  # noqa: PLC0415 - see `origin`
    from urllib.request import url2pathname  # noqa: PLC0415

    return url2pathname(urlsplit(url).path)
