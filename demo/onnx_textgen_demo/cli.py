"""The command `onnx-textgen demo`. Gradio takes seconds to import, so that happens only when the command runs."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

PACKAGE_HELP = "Model folder, or the name of a model that ships with onnx-textgen (story, tiny-transformer)."

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode=None, add_completion=False)


@app.command()
def demo(
    package: Annotated[str | None, typer.Argument(metavar="PACKAGE", help=PACKAGE_HELP, show_default=False)] = None,
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 7860,
    device: Annotated[str, typer.Option(metavar="D", help="auto, cpu or cuda; auto takes CUDA where it works.")] = "auto",
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads; all cores unless given.")] = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    allow_public: Annotated[bool, typer.Option("--allow-public", help="Allow a --host that other machines can reach.")] = False,
) -> None:
    """Generate text in a web page on this machine."""
    import onnx_textgen  # noqa: PLC0415  (see above)

    from .app import make_page  # noqa: PLC0415
    from .server import LOOPBACK, serve  # noqa: PLC0415

    model = onnx_textgen.load(package, device=device, threads=threads)
    page = make_page(model)
    address = serve(page, host=host, port=port, allow_public=allow_public, open_browser=open_browser)
    if host not in LOOPBACK:
        typer.echo(f"warning: everyone who can reach {host} can use this page", err=True)
    typer.echo(f"{model.manifest.name} on {model.device} writes at {address} (Ctrl-C ends it)", err=True)
    try:
        threading.Event().wait()
    finally:
        page.close(verbose=False)
