"""The command `onnx-textgen`.

This package reads arguments, prints results and turns errors into one line and an exit code (0 done, 1 failure, 2 usage,
130 interrupted, 141 if the reader of a pipe closed it). It computes nothing itself, and it imports the model's code only inside the
command that needs it, so that `--help` and completion answer at once. This module imports nothing of the project, because Ctrl-C
before `main` ends in a traceback.
"""

from __future__ import annotations

import sys

__all__ = ["main", "run"]


def main() -> None:
    """Run the command line of this process and end the process."""
    try:
        from . import app  # noqa: PLC0415  (so that Ctrl-C during the import gives no traceback)

        app.main()
    except KeyboardInterrupt:
        sys.exit(130)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    from . import app  # noqa: PLC0415

    return app.run(arguments)
