"""The command `onnx-textgen`.

This package reads arguments, prints results and turns errors into one line and an exit code (0 done, 1 failure, 2 usage,
130 interrupted, 141 for a pipe whose reader went away). It computes nothing of its own, and it imports the model's code only inside
the command that needs it, so that `--help` and completion answer at once. Nothing is imported here: until `main` runs, Ctrl-C is
Python's own to answer, with a traceback.
"""

from __future__ import annotations

import sys

__all__ = ["main", "run"]


def main() -> None:
    """Run the command line of this process and end the process."""
    try:
        from . import app  # noqa: PLC0415  (Ctrl-C while Python still reads its modules is no traceback either)

        app.main()
    except KeyboardInterrupt:
        sys.exit(130)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    from . import app  # noqa: PLC0415

    return app.run(arguments)
