"""`onnx-textgen doctor`: what the program finds on this machine, and what to do about it."""

from __future__ import annotations

import typer

from .. import options
from ..terminal import screen, tables


def report_health(as_json: options.JsonOption = False) -> None:
    """Look for what is wrong with this installation.

    Each problem is followed by the line that mends it; the exit code is 1 if there is one.

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
