"""The libraries of a site: pinned versions from npm, each file with its size and sha256 (`runtime/web/libraries.json`).

They are fetched once into a cache, by `npm ci` from the lock file, whose integrity npm checks, without install scripts. Or the site
names jsDelivr's copies, which the browser compares with the same digests.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from ..errors import OnnxTextgenError, first_line
from ..files.user_folders import own_cache

CDN = "https://cdn.jsdelivr.net/npm/"
LONGEST_FETCH_SECONDS = 900


class LibraryError(OnnxTextgenError):
    """The libraries of a site cannot be had."""


@dataclasses.dataclass(frozen=True, slots=True)
class Library:
    """One file of an npm package."""

    package: str
    version: str
    path: str
    """The file within the package."""
    licence: str
    size: int
    sha256: str

    @property
    def local_name(self) -> str:
        """Its path in a site's folder of libraries; with the version, so that an old copy is never taken for a new one."""
        return f"{self.package.rpartition('/')[2]}-{self.version}/{Path(self.path).name}"

    @property
    def cdn_url(self) -> str:
        """Its address at jsDelivr."""
        return f"{CDN}{self.package}@{self.version}/{self.path}"


def web_folder() -> Path:
    """The folder of the JavaScript: within the installed package, or in the checkout."""
    inside_wheel = Path(__file__).parents[1] / "web"
    return inside_wheel if inside_wheel.is_dir() else Path(__file__).parents[2] / "web"


def read_libraries() -> dict[str, Library]:
    """The libraries of a site, by what they are for."""
    content = json.loads((web_folder() / "libraries.json").read_text(encoding="utf-8"))
    return {name: Library(**each) for name, each in content.items()}


def cached_libraries() -> Path:
    """A folder that has every library under its `local_name`, fetched by npm if it is not there yet.

    Raises `LibraryError` without npm, if the download fails, or if a file is not the one that was pinned.
    """
    cache = own_cache() / "web"
    libraries = read_libraries()
    if missing := [each for each in libraries.values() if not has_digest(cache / each.local_name, each)]:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="npm-") as place:
            modules = install(Path(place))
            for each in missing:
                source = modules / each.package / each.path
                if not has_digest(source, each):
                    raise LibraryError(
                        f"{each.package} {each.version} has another {each.path} than the one this version of onnx-textgen was "
                        "made with; install onnx-textgen again"
                    )
                (cache / each.local_name).parent.mkdir(exist_ok=True)
                source.replace(cache / each.local_name)
    return cache


def install(place: Path) -> Path:
    """Install the packages of the lock file in a folder, with npm; returns its `node_modules`."""
    npm = shutil.which("npm")
    if npm is None:
        raise LibraryError(
            "npm, which fetches the JavaScript libraries of the site, is not installed; install Node.js (https://nodejs.org), "
            "or use --cdn, with which visitors' browsers fetch them from cdn.jsdelivr.net"
        )
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(web_folder() / name, place / name)
    command = [npm, "ci", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        done = subprocess.run(
            command, cwd=place, capture_output=True, text=True, errors="replace", check=False, timeout=LONGEST_FETCH_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LibraryError(
            f"npm could not fetch the libraries of the site ({first_line(error)}); try again, or use --cdn"
        ) from error
    if done.returncode:
        lines = [line.removeprefix("npm error").strip() for line in done.stderr.splitlines()]
        why = next((line for line in lines if line and not line.startswith("code ")), f"exit code {done.returncode}")
        raise LibraryError(f"npm could not fetch the libraries of the site ({why:.200}); check the network, or use --cdn")
    return place / "node_modules"


def has_digest(path: Path, library: Library) -> bool:
    """Return whether a file is the library's, by size and sha256."""
    if not path.is_file() or path.stat().st_size != library.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == library.sha256
