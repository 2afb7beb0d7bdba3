"""Where this installation came from, and the commands of pip that extend, upgrade or repair it from there.

pip records it (PEP 610): a checkout, a wheel's file, a repository; nothing if the package index was asked by name.
"""

from __future__ import annotations

import json
import os
from typing import Any

NAME = "onnx-textgen"


def add_extra(extra: str) -> str:
    """The command that adds an optional part."""
    return f"pip install {requirement(origin(), f'[{extra}]')}"


def upgrade() -> str:
    """The command that installs a newer version. A file stays what it is: the package index has newer ones."""
    record = origin()
    if "dir_info" in record:
        path = path_of(record["url"])
        return f'git -C "{path}" pull' + ("" if is_editable(record) else f' && pip install "{path}"')
    return f"pip install -U {requirement({} if 'archive_info' in record else record, '', is_newer=True)}"


def reinstall() -> str:
    """The command that writes the files of this version again."""
    return f"pip install --force-reinstall --no-deps {requirement(origin(), '')}"


def requirement(record: dict[str, Any], extras: str, *, is_newer: bool = False) -> str:
    """What pip is given to install from the same place. `extras`: empty, or in brackets. `is_newer`: not the same commit."""
    url = record.get("url", "")
    if url.startswith("file:") and "vcs_info" not in record:
        return f'{"-e " if is_editable(record) else ""}"{path_of(url)}{extras}"'
    if "vcs_info" in record:
        vcs = record["vcs_info"]
        url = f"{vcs['vcs']}+{url}" + ("" if is_newer else f"@{vcs['commit_id']}")
    if "subdirectory" in record:
        url += f"#subdirectory={record['subdirectory']}"
    if url:
        return f'"{NAME}{extras} @ {url}"'
    return f'"{NAME}{extras}"' if extras else NAME


def origin() -> dict[str, Any]:
    """What pip recorded; empty for the package index, for files that are gone, and in an app that has no record."""
    from importlib import metadata  # noqa: PLC0415 - its import takes a twentieth of the time in which a model opens

    try:
        found = json.loads(metadata.distribution(NAME).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return {}
    if not isinstance(found, dict) or not isinstance(url := found.get("url"), str):
        return {}
    is_gone = url.startswith("file:") and not os.path.exists(path_of(url))  # noqa: PTH110 - `Path.exists` raises if it may not look
    return {} if is_gone else found


def is_editable(record: dict[str, Any]) -> bool:
    """Whether a checkout is used in place."""
    return bool(record.get("dir_info", {}).get("editable"))


def path_of(url: str) -> str:
    """The path of a file's URL."""
    from urllib.parse import urlsplit  # noqa: PLC0415 - see `origin`
    from urllib.request import url2pathname  # noqa: PLC0415

    return url2pathname(urlsplit(url).path)
