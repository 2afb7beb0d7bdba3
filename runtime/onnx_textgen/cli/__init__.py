"""The command `onnx-textgen`.

This package reads arguments, prints results and turns errors into one line and an exit code (0 done, 1 failure, 2 usage,
130 interrupted, 141 if the reader of a pipe closed it, 143 ended by SIGTERM in a container). It computes nothing itself, and it
imports the model's code only inside the command that needs it, so that `--help` and completion answer at once. This module imports
almost nothing, because Ctrl-C before `main` ends in a traceback.
"""

from __future__ import annotations

import sys

__all__ = ["main", "run"]


def main() -> None:
    """Run the command line of this process and end the process."""
    try:
        import os  # noqa: PLC0415
        import signal  # noqa: PLC0415

        signal.signal(signal.SIGINT, leave)  # until `interrupts` has it raise an exception
        if os.getpid() == 1:  # a container's first process gets no signal that it does not handle
            signal.signal(signal.SIGTERM, leave)
        from . import app  # noqa: PLC0415

        app.main()
    except KeyboardInterrupt:
        sys.exit(130)


def leave(number: int, _: object) -> None:
    """Handle a signal where there is nothing to undo: end the process at once.

    An exception would be taken for a broken library by code that is being imported, numpy's for one, and become a traceback.
    """
    import os  # noqa: PLC0415

    try:
        sys.modules[f"{__name__}.terminal.screen"].leave_row()
        sys.stdout.flush()
    finally:
        os._exit(128 + number)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    from . import app  # noqa: PLC0415

    return app.run(arguments)
