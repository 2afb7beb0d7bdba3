"""The sources of `runtime/web`: types, what they import, and the pinned packages."""

import json
import re
import shutil
import subprocess
from pathlib import Path

from support.node import NODE, WEB

CORE = sorted((WEB / "textgen").rglob("*.js"))


def check_types(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run TypeScript's checker over the types in the comments."""
    assert NODE is not None
    command = [NODE, "node_modules/typescript/bin/tsc", "--project", "tsconfig.json"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_the_types_are_right_and_a_wrong_one_is_noticed(web: Path, tmp_path: Path) -> None:
    done = check_types(web)
    assert (done.returncode, done.stdout) == (0, "")
    wrong = Path(shutil.copytree(web, tmp_path / "web", symlinks=True))
    file = wrong / "textgen" / "sampling" / "philox.js"
    file.write_text(file.read_text(encoding="utf-8").replace("BigInt(seed)", "seed"), encoding="utf-8")
    assert "philox.js" in check_types(wrong).stdout


def test_the_core_imports_its_own_files_alone_so_that_workers_run_it_too() -> None:
    assert len(CORE) > 20
    for path in CORE:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"""(?:^|\s)(?:import|export)\b[^;]*?from ["']([^"']+)["'];""", text):
            assert name.startswith(".") and (path.parent / name).is_file(), f"{path.name} imports {name}"
        assert not re.search(r"\bimport\(\"node:|\brequire\(|\bprocess\.|\bBuffer\b|node:", text), path.name


def test_every_package_has_an_exact_version_and_a_hash() -> None:
    named = json.loads((WEB / "package.json").read_text())
    for version in (named["dependencies"] | named["devDependencies"]).values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    lock = json.loads((WEB / "package-lock.json").read_text())["packages"]
    assert all(each.get("integrity", "").startswith("sha512-") for name, each in lock.items() if name)
    registry = "https://registry.npmjs.org/"
    assert all(each.get("resolved", registry).startswith(registry) for each in lock.values())


def test_every_function_that_others_import_says_what_it_does() -> None:
    for path in CORE:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("/**"), path.name
        for number, line in enumerate(lines):
            if re.match(r"export (async )?(function|class)", line):
                assert lines[number - 1].endswith("*/"), f"{path.name}:{number + 1}"
