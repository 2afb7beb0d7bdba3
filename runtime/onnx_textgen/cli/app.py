"""The commands put together, and how the process ends."""

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
from ..requirements import wrong_version
from . import extensions
from .commands import bench, chat, doctor, generate, info, listing, score, verify
from .commands import inspect as inspect_command
from .help_texts import help_of, summary_of
from .terminal import screen
from .wrong_usage import usage_message

DEBUG_VARIABLE = "ONNX_TEXTGEN_DEBUG"
PIPE_CLOSED = 128 + 13
"""What a shell tells of a process that SIGPIPE ended, as it ends other programs whose reader has gone."""

# The base of all usage errors: typer exports only this leaf of it, and the module above it moved between versions of typer.
ClickError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Colour(StrEnum):
    """When to colour what is printed."""

    auto = "auto"
    always = "always"
    never = "never"


def print_version(wanted: bool) -> None:
    """Print the version and end, if `--version` was given."""
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415  (milliseconds that no other command should pay)

        typer.echo(f"onnx-textgen {version('onnx-textgen')}")
        raise typer.Exit


def describe(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")] = False,
    color: Annotated[
        Colour, typer.Option(envvar="ONNX_TEXTGEN_COLOR", help="auto: on a terminal, unless NO_COLOR is set.")
    ] = Colour.auto,
) -> None:
    """Generate text from exported PyTorch decoders, without PyTorch.

    Each command explains itself: onnx-textgen generate -h. In place of the options --model, --device and --threads of any command
    the variables ONNX_TEXTGEN_MODEL, ONNX_TEXTGEN_DEVICE and ONNX_TEXTGEN_THREADS may be set.

    Try:
        onnx-textgen generate
        onnx-textgen list
        onnx-textgen chat --model DIR
        onnx-textgen export CHECKPOINT --out DIR
    """
    screen.choose_colours(color)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


COMMANDS: dict[str, Callable[..., None]] = {
    "generate": generate.generate_text,
    "chat": chat.hold_conversation,
    "inspect": inspect_command.inspect_prompt,
    "score": score.score_text,
    "list": listing.show_models,
    "info": info.show_info,
    "verify": verify.verify_package,
    "bench": bench.measure_speed,
    "doctor": doctor.report_health,
}
app.callback(help=help_of(describe), invoke_without_command=True)(describe)
for name, command in COMMANDS.items():
    app.command(name, help=help_of(command), short_help=summary_of(command))(command)
extensions.add_extensions(app)


def main() -> None:
    """Run the command line of this process and end the process."""
    write_whatever_comes(sys.stdout)
    write_whatever_comes(sys.stderr)
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        code = leave_pipe()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # from here on Ctrl-C ends the process without a word
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; every error becomes one line on stderr."""
    debug = bool(os.environ.get(DEBUG_VARIABLE))
    try:
        # Without standalone mode typer returns the exit code of typer.Exit, 130 for Ctrl-C among them.
        result = typer.main.get_command(app)(arguments, prog_name="onnx-textgen", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SystemExit as error:  # typer ends the process itself where a pipe's reader has gone
        if isinstance(error.__context__, BrokenPipeError):
            return leave_pipe()
        raise
    except ClickError as error:
        return fail(usage_message(error, arguments, COMMANDS), code=getattr(error, "exit_code", 2))
    except OnnxTextgenError as error:
        if debug:
            raise
        return fail(str(error), code=2 if isinstance(error, OptionError) else 1)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the last resort: a person gets a line, a developer asks for the traceback
        if debug:
            raise
        if (reason := wrong_version(error)) is not None:
            return fail(reason)
        return fail(f"{type(error).__name__}: {error}; for the traceback set {DEBUG_VARIABLE}=1")


def fail(message: str, code: int = 1) -> int:
    """Say what went wrong in one line on stderr and return the exit code."""
    screen.note("error: " + " ".join(message.split()))
    return code


def write_whatever_comes(stream: TextIO) -> None:
    """Make a stream take any text: UTF-8 into files and pipes, the terminal's own encoding with replacements otherwise."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")


def leave_pipe() -> int:
    """Forget the streams after their reader has gone, or the interpreter complains about them while it ends; the exit code."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return PIPE_CLOSED
