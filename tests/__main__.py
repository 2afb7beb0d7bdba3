"""`python -m tests`: every check of the project, in the order of what they cost. Arguments go to pytest.

python -m tests                 everything
python -m tests tests/runtime   the same, with the tests of one part
python -m tests -k stop         the same, with the tests of one name
"""

import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(sysconfig.get_path("scripts"))
WORKERS = ["-n", "2", "--dist", "loadfile"]  # by file, so that what a file exports or serves is made once

CHECKS = {
    "ruff check": [sys.executable, "-m", "ruff", "check", "."],
    "ruff format": [sys.executable, "-m", "ruff", "format", "--check", "."],
    "mypy": [sys.executable, "-m", "mypy"],
    "lint-imports": [str(SCRIPTS / "lint-imports")],
    "pytest": [sys.executable, "-m", "pytest", *WORKERS, *sys.argv[1:]],
}


def main() -> int:
    """Run every check, the later ones also after a failure, and return 1 if any failed."""
    failed = []
    for name, command in CHECKS.items():
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
