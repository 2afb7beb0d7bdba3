"""Assembles the commands, runs one, and ends the process with its exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, TextIO

import typer

from ..errors import OnnxTextgenError, OptionError
from ..help_texts import help_of, summary_of
from ..requirements import wrong_version
from . import extensions, interrupts
from .analysis import inspect as inspect_command
from .analysis import score
from .commands import bench, build, chat, doctor, generate, info, listing, pull, site, transcribe, verify
from .publishing import push
from .renamed_names import in_todays_names
from .terminal import screen
from .wrong_usage import usage_message

DEBUG_VARIABLE = "ONNX_TEXTGEN_DEBUG"
INTERRUPTED = 128 + 2
PIPE_CLOSED = 128 + 13
"""The exit code that a shell reports for a process that SIGPIPE ended, as it ends other programs whose reader closed the pipe."""

# The base class of all usage errors. typer exports only this subclass, and the module of the base moved between versions of typer.
ClickError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Colour(StrEnum):
    """When to colour the output."""

    auto = "auto"
    always = "always"
    never = "never"


def print_version(wanted: bool) -> None:
    """Print the version and end, if `--version` was given."""
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415  (takes milliseconds, which no other command needs)

        typer.echo(f"onnx-textgen {version('onnx-textgen')}")
        raise typer.Exit


def describe(
    context: typer.Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", "-v", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
    color: Annotated[
        Colour, typer.Option(envvar="ONNX_TEXTGEN_COLOR", help="auto: on a terminal, unless NO_COLOR is set.")
    ] = Colour.auto,
) -> None:
    """Generate text from exported PyTorch decoders, without PyTorch.

    Each command has a help page: onnx-textgen generate -h. The variables ONNX_TEXTGEN_MODEL, ONNX_TEXTGEN_DEVICE and
    ONNX_TEXTGEN_THREADS set the options --model, --device and --threads of every command.

    Try:
        onnx-textgen generate
        onnx-textgen list
        onnx-textgen chat DIR
        onnx-textgen export CHECKPOINT --out DIR
    """
    if context.invoked_subcommand not in NOTHING_TO_UNDO:
        interrupts.raise_exceptions()
    screen.choose_colours(color)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


NOTHING_TO_UNDO = ("list", "info", "doctor")
COMMANDS: dict[str, Callable[..., None]] = {
    "generate": generate.generate_text,
    "chat": chat.hold_session,
    "inspect": inspect_command.inspect_prompt,
    "score": score.score_text,
    "transcribe": transcribe.transcribe_sound,
    "pull": pull.pull_model,
    "build": build.build_package,
    "list": listing.show_models,
    "remove": pull.remove_model,
    "push": push.push_model,
    "info": info.show_info,
    "verify": verify.verify_package,
    "bench": bench.measure_speed,
    "site": site.make_site,
    "doctor": doctor.report_health,
}
app.callback(help=help_of(describe), invoke_without_command=True)(describe)
for name, command in COMMANDS.items():
    app.command(name, help=help_of(command), short_help=summary_of(command))(command)
extensions.add_extensions(app)


def main() -> None:
    """Run the command line of this process and end the process."""
    accept_any_text(sys.stdout)
    accept_any_text(sys.stderr)
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        code = discard_output()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C now ends the process without a traceback
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; every error becomes one line on stderr."""
    debug, arguments = bool(os.environ.get(DEBUG_VARIABLE)), in_todays_names(arguments)
    try:
        # Without standalone mode typer returns the exit code of typer.Exit; for Ctrl-C that is 130.
        result = typer.main.get_command(app)(arguments, prog_name="onnx-textgen", standalone_mode=False)
        if result == INTERRUPTED:
            screen.leave_row()
        return result if isinstance(result, int) else 0
    except SystemExit as error:  # typer ends the process itself if the reader of a pipe closed it
        if isinstance(error.__context__, BrokenPipeError):
            return discard_output()
        raise
    except ClickError as error:
        return fail(usage_message(error, arguments, [*COMMANDS, *extensions.SUMMARIES]), code=getattr(error, "exit_code", 2))
    except OnnxTextgenError as error:
        if debug:
            raise
        return fail(str(error), code=2 if isinstance(error, OptionError) else 1)
    except KeyboardInterrupt:
        screen.leave_row()
        return INTERRUPTED
    except Exception as error:  # anything unexpected: one line for users, a traceback for developers who ask for it
        if debug:
            raise
        if isinstance(error, ImportError | SystemError) and interrupts.came:
            screen.leave_row()
            return INTERRUPTED
        if (reason := wrong_version(error)) is not None:
            return fail(reason)
        return fail(f"{type(error).__name__}: {error}; for the traceback set {DEBUG_VARIABLE}=1")


def fail(message: str, code: int = 1) -> int:
    """Write an error as one line to stderr and return the exit code."""
    screen.note("error: " + " ".join(message.split()))
    return code


def accept_any_text(stream: TextIO) -> None:
    """Make a stream accept any text: as UTF-8 in files and pipes, with replacement characters in a terminal's encoding."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")


def discard_output() -> int:
    """Redirect the streams of a closed pipe to nowhere, because the interpreter flushes them at its end; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return PIPE_CLOSED
