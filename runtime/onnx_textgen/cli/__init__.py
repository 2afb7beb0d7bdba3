"""The command `onnx-textgen`.

This package reads arguments, prints results and turns errors into one line and an exit code (0 done, 1 failure, 2 usage,
130 interrupted). It computes nothing of its own, and it imports the model's code only inside the command that needs it, so
that `--help` and completion answer at once.
"""

from .app import main, run

__all__ = ["main", "run"]
