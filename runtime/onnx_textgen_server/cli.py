"""The command `onnx-textgen serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnx_textgen.cli.fetching import fetch_model
from onnx_textgen.cli.help_texts import help_of
from onnx_textgen.cli.hosts import in_url, is_public, listen, names_of
from onnx_textgen.errors import OptionError

if TYPE_CHECKING:
    from onnx_textgen import Model

PACKAGE_HELP = "Model folders, or names of embedded models. Clients use the folder's name; NAME=DIR gives another."

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode=None, add_completion=False)


def serve(
    packages: Annotated[list[str] | None, typer.Argument(metavar="[NAME=]DIR", help=PACKAGE_HELP, show_default=False)] = None,
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8000,
    api_key: Annotated[
        str | None, typer.Option(envvar="ONNX_TEXTGEN_API_KEY", help="Answer only requests that send this key.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(metavar="D", help="auto, cpu, cuda or openvino; auto takes CUDA where it works.")] = "auto",
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads; all cores unless given.")] = None,
    batch_size: Annotated[int, typer.Option(metavar="N", help="Texts of one model that run at once.")] = 8,
    max_texts: Annotated[int, typer.Option(metavar="N", help="Texts that may run or wait; more are refused.", min=1)] = 128,
    max_time: Annotated[float, typer.Option(metavar="S", help="Seconds after which a text ends.", min=1)] = 600,
    max_body: Annotated[int, typer.Option(metavar="BYTES", help="Longest body of a request.", min=1024)] = 4 * 2**20,
    allow_origin: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Origin of a web page that may call the server.")
    ] = None,
    allow_public: Annotated[
        bool, typer.Option("--allow-public", help="Allow a --host that others can reach, without a key.")
    ] = False,
) -> None:
    """Answer OpenAI's API over HTTP: /v1/completions, /v1/chat/completions, /v1/embeddings, /v1/rerank, /v1/models.

    Try:
        onnx-textgen serve
        onnx-textgen serve DIR --port 8000
        onnx-textgen serve small=DIR large=DIR --api-key KEY --host 0.0.0.0
    """
    from .app import Settings, make_app  # noqa: PLC0415  (slow, and `--help` does not need it)
    from .process import run_server  # noqa: PLC0415

    check_access(host, api_key, allow_public=allow_public)
    folders = named(packages or [None])
    settings = Settings(
        api_key=api_key,
        max_texts=max_texts,
        max_seconds=max_time,
        max_body_bytes=max_body,
        hosts=names_of(host),
        origins=allow_origin or (),
    )
    listeners = listen(host, port)  # first, because a port in use should be reported before models load
    try:
        models = load_models(folders, device=device, threads=threads, batch_size=batch_size)
        typer.echo(f"{', '.join(models)} at http://{in_url(host)}:{port}/v1 (Ctrl-C ends it)", err=True)
        run_server(make_app(models, settings), listeners)
    finally:
        for listener in listeners:
            listener.close()


app.command(help=help_of(serve))(serve)


def check_access(host: str, api_key: str | None, *, allow_public: bool) -> None:
    """Raise `OptionError` for a server that others can reach without a key, and for a key that no client can send."""
    if is_public(host) and api_key is None and not allow_public:
        raise OptionError(f"--host {host} lets other machines use this server; add --api-key, or --allow-public if you want that")
    if api_key is not None and not (api_key.isascii() and api_key.strip()):
        raise OptionError("the API key is empty or has characters outside ASCII; give another key, or leave it out")


def load_models(
    folders: list[tuple[str | None, str | None]], *, device: str, threads: int | None, batch_size: int
) -> dict[str, Model]:
    """Fetch and load a model from each folder, and return them by name; a model without a name gets its manifest's."""
    import onnx_textgen  # noqa: PLC0415  (likewise)

    models: dict[str, Model] = {}
    for name, folder in folders:
        fetch_model(folder)
        model = onnx_textgen.load(folder, device=device, threads=threads, batch_size=batch_size)
        models[name or model.manifest.name] = model
    return models


def named(packages: list[str] | list[None]) -> list[tuple[str | None, str | None]]:
    """Names and folders; raises `OptionError` if two have the same name.

    >>> named(["large=models/a", "models/b"])
    [('large', 'models/a'), ('b', 'models/b')]
    """
    pairs: list[tuple[str | None, str | None]] = []
    for package in packages:
        name, equals, folder = (package or "").partition("=")
        pairs.append((name, folder) if equals else (Path(package).name if package else None, package))
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise OptionError(f"two models are called {max(names, key=names.count)}; give them names with NAME=DIR")
    return pairs
