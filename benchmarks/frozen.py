"""A frozen app: its size, and the time from its start to its first text, with PyInstaller and Nuitka beside Python itself.

    pip install pyinstaller nuitka
    python benchmarks/frozen.py FOLDER [--nuitka]

Writes the smallest app, and what these programs make of it, into FOLDER, and uses what is there already: Nuitka takes long.
They pack the installation that runs this: take a new environment, with nothing in it that the app does not need.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

APP = """
import onnx_textgen
print(onnx_textgen.load(threads=1).generate("Once upon a time", max_new_tokens=1, seed=7).text)
"""
LEFT_OUT = ("onnxruntime.transformers", "onnxruntime.quantization", "onnxruntime.tools", "onnxruntime.backend", "numpy.testing")
"""What the library never imports, and Nuitka would compile."""


def main() -> None:
    """Freeze what is missing, and start each app in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nuitka", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    app = given.folder.absolute() / "app.py"
    app.write_text(APP, encoding="utf-8")
    pyinstaller = ("PyInstaller", "--log-level", "ERROR", "--distpath", "dist", str(app))
    programs = {
        "Python": (sys.executable, str(app)),
        "PyInstaller, a folder": made(app, ("dist", "app"), (*pyinstaller, "--onedir")),
        "PyInstaller, one file": made(app, ("dist", "one"), (*pyinstaller, "--onefile", "--name", "one")),
    }
    if given.nuitka:
        data = ("--include-package=onnx_textgen", "--include-package-data=onnx_textgen")
        left_out = [f"--nofollow-import-to={name}" for name in LEFT_OUT]
        options = ("--standalone", "--lto=no", "--assume-yes-for-downloads", *data, *left_out)
        programs["Nuitka, a folder"] = made(app, ("app.dist",), ("nuitka", *options, str(app)))
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(1 + given.rounds):  # the first is for the disk's cache
        for name, command in programs.items():
            begin = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - begin)
    print("| app | size | until it has written a token and ended |\n|---|---:|---:|")
    for name, command in programs.items():
        size = "" if name == "Python" else f"{megabytes(given.folder, Path(command[0])):,.0f} MB"
        print(f"| {name} | {size} | {statistics.median(times[name][1:]):.2f} s |")


def made(app: Path, place: tuple[str, ...], module: tuple[str, ...]) -> tuple[str, ...]:
    """The command of a frozen app, which is made if it is not there."""
    target = app.parent.joinpath(*place)
    program = next((each for each in (target / "app", target / "app.bin", target) if each.is_file()), None)
    if program is None:
        subprocess.run([sys.executable, "-m", *module], check=True, cwd=app.parent)
        return made(app, place, module)
    return (str(program),)


def megabytes(folder: Path, program: Path) -> float:
    """The size of an app: of its file, or of its folder."""
    whole = [program] if program.parent == folder.absolute() / "dist" else program.parent.rglob("*")
    return sum(path.stat().st_size for path in whole if path.is_file()) / 1e6


if __name__ == "__main__":
    main()
