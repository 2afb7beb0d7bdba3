"""`python -m tests`: lint, format, types, import boundaries, and the tests that a change is tried with, in some minutes.

python -m tests                 the checks, and all tests but the slow ones
python -m tests whole           the checks, types as on Windows and macOS too, and slow tests: what continuous integration runs
python -m tests whole -m rare   the tests of further types of models, which neither of these runs
python -m tests tests/runtime   the tests of one part; arguments go to pytest
python -m tests whole -k stop   the tests of one name, slow ones too
python -m tests deep            the attacks, and all other tests of hypothesis, with twenty times as many examples: hours

Slow are those marked `slow`: they export large or many models, or make a whole series of what another test tries once; and attacks,
and tests in a browser but those of `tests/demo/test_browser.py`. Those marked `rare` try on further types of models what slow tests
try on some.
"""

import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(sysconfig.get_path("scripts"))
WHOLE, DEEP = "whole", "deep"
OTHER_SYSTEMS = {"Windows": "win32", "macOS": "darwin"}
WORKERS = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
"""By file, so that what a file exports or serves is made once, in the order of `conftest`. Three on two cores: browsers wait."""
DURATIONS = ["--durations", "30", "--junitxml", "build/tests.xml"]


def types_of(platform: str) -> list[str]:
    """Options of mypy for another system, and the files that ask which one it is: the others have the same types everywhere."""
    files = [
        path
        for folder in ("runtime", "export", "demo")
        for path in (ROOT / folder).rglob("*.py")
        if "sys.platform" in path.read_text()
    ]
    return ["--platform", platform, "--cache-dir", f".mypy_cache/{platform}", *map(str, files)]  # one cache serves one system


def checks(arguments: list[str]) -> dict[str, list[str]]:
    """Every check and its command, in the order of what they cost."""
    pytest = [sys.executable, "-m", "pytest", *WORKERS, *DURATIONS]
    if arguments[:1] == [DEEP]:
        return {
            "pytest": [*pytest, "--hypothesis-profile", DEEP, "--timeout", "7200", "-m", "hypothesis and not rare", *arguments[1:]]
        }
    is_whole = arguments[:1] == [WHOLE]
    selection = ["-m", "not rare", *arguments[1:]] if is_whole else ["-m", "not slow and not rare", *arguments]
    mypy = [sys.executable, "-m", "mypy", "--num-workers", "2"]
    return {
        "ruff check": [sys.executable, "-m", "ruff", "check", "."],
        "ruff format": [sys.executable, "-m", "ruff", "format", "--check", "."],
        "mypy": mypy,
        **{f"mypy for {name}": [*mypy, *types_of(platform)] for name, platform in OTHER_SYSTEMS.items() if is_whole},
        "lint-imports": [str(SCRIPTS / "lint-imports")],
        "pytest": [*pytest, *selection],
    }


def main() -> int:
    """Run every check, the later ones also after a failure, and return 1 if any failed."""
    failed = []
    for name, command in checks(sys.argv[1:]).items():
        print(f"== {name}", flush=True)
        start = time.monotonic()
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        print(f"== {name}: {'ok' if code == 0 else 'FAILED'} in {time.monotonic() - start:.0f} s", flush=True)
        if code != 0:
            failed.append(name)
    print("all checks passed" if not failed else f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
