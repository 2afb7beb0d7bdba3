"""A frozen app: its size, and the time from its start to its end after one token, with PyInstaller beside Python itself.

    pip install pyinstaller
    python benchmarks/frozen.py FOLDER

Writes the smallest app, and what PyInstaller makes of it, into FOLDER, and uses what is there already. PyInstaller packs the
installation that runs this: take a new environment, with nothing in it that the app does not need.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

APP = """
import onnx_textgen
print(onnx_textgen.load(threads=1).generate("Once upon a time", max_new_tokens=1, seed=7).text)
"""


def main() -> None:
    """Freeze what is missing, and start each app in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    app = given.folder.absolute() / "app.py"
    app.write_text(APP, encoding="utf-8")
    folder = frozen(app, app.parent / "dist" / "app" / "app", "--onedir")
    one = frozen(app, app.parent / "dist" / "one", "--onefile", "--name", "one")
    programs = {"Python": (sys.executable, str(app)), "a folder": (str(folder),), "one file": (str(one),)}
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(1 + given.rounds):  # the first is for the disk's cache
        for name, command in programs.items():
            begin = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - begin)
    sizes = {"Python": "", "a folder": megabytes(folder.parent.rglob("*")), "one file": megabytes([one])}
    print("| app | size | from start to end |\n|---|---:|---:|")
    for name in programs:
        print(f"| {name} | {sizes[name]} | {statistics.median(times[name][1:]):.2f} s |")


def frozen(app: Path, program: Path, *options: str) -> Path:
    """The program that PyInstaller makes of an app, which is made if it is not there."""
    if not program.exists():
        module = [sys.executable, "-m", "PyInstaller", "--log-level", "ERROR", "--distpath", "dist"]
        subprocess.run([*module, *options, str(app)], check=True, cwd=app.parent)
    return program


def megabytes(paths: Iterable[Path]) -> str:
    """The size of files together; links are no copies."""
    return f"{sum(path.stat().st_size for path in paths if path.is_file() and not path.is_symlink()) / 1e6:,.0f} MB"


if __name__ == "__main__":
    main()
