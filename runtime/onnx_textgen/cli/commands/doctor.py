"""`onnx-textgen doctor`: shows the installation on this machine, its problems and how to fix them."""

from __future__ import annotations

import typer

from .. import options
from ..terminal import screen, tables


def report_health(as_json: options.JsonOption = False) -> None:
    """Look for problems of this installation.

    Each problem is followed by the command that fixes it; the exit code is 1 if there is any.

    Try:
        onnx-textgen doctor
        onnx-textgen doctor --json
    """
    from ...diagnostics import doctor  # noqa: PLC0415

    report = doctor.examine()
    if as_json:
        screen.print_json(report)
    else:
        tables.print_lines(doctor.lines(report))
        for problem in report.problems:
            typer.echo(f"problem: {problem.what}\n    fix: {problem.fix}")
        if not report.problems:
            typer.echo("no problems found")
    if report.problems:
        raise typer.Exit(1)
