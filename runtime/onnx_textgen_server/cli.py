"""The command `onnx-textgen serve`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from onnx_textgen.answers.visible_text import visible
from onnx_textgen.api.fetching import fetch_model
from onnx_textgen.errors import OptionError
from onnx_textgen.help_texts import help_of
from onnx_textgen.hosts import in_url, is_public, listen, names_of

PACKAGE_HELP = (
    "Model folders, folders of model folders, or names of embedded models. Clients use the folder's name; NAME=DIR gives another."
)

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode=None, add_completion=False)


def serve(
    packages: Annotated[list[str] | None, typer.Argument(metavar="[NAME=]DIR", help=PACKAGE_HELP, show_default=False)] = None,
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8000,
    api_key: Annotated[
        str | None, typer.Option(envvar="ONNX_TEXTGEN_API_KEY", help="Answer only requests that send this key.", show_default=False)
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="D", help="auto, cpu, cuda, openvino, webgpu or another; auto takes CUDA where it works.")
    ] = "auto",
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads; all cores unless given.")] = None,
    batch_size: Annotated[int, typer.Option(metavar="N", help="Texts of one model that run at once.")] = 8,
    max_loaded: Annotated[
        int | None,
        typer.Option(metavar="N", help="Models that are open at once; as many as memory has room for unless given.", min=1),
    ] = None,
    idle_minutes: Annotated[
        float | None, typer.Option(metavar="M", help="Close a model that was not used for M minutes; never unless given.", min=0)
    ] = None,
    prefix_folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder where beginnings of prompts are saved for a restart.", show_default=False),
    ] = None,
    prefix_folder_bytes: Annotated[int, typer.Option(metavar="N", help="Most bytes of the files in that folder.", min=1)] = 2**30,
    whole_past: Annotated[
        bool, typer.Option("--whole-past", help="Hold whole texts in layers with a window too, for prompts that begin alike.")
    ] = False,
    exact_history: Annotated[
        bool,
        typer.Option("--exact-history", help="Compute answers again when they return in a prompt, to the last bit."),
    ] = False,
    fetch_images: Annotated[
        bool, typer.Option("--fetch-images", help="Fetch pictures that a request names by a public address of the web.")
    ] = False,
    response_template: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE", help="How the answers of a model are divided; default: the package says.", show_default=False
        ),
    ] = None,
    max_texts: Annotated[int, typer.Option(metavar="N", help="Texts that may run or wait; more are refused.", min=1)] = 128,
    max_time: Annotated[float, typer.Option(metavar="S", help="Seconds after which a text ends.", min=1)] = 600,
    max_body: Annotated[int, typer.Option(metavar="BYTES", help="Longest body of a request.", min=1024)] = 4 * 2**20,
    drain: Annotated[
        float,
        typer.Option(
            metavar="S", help="Seconds for running texts to end after SIGTERM, before they are cancelled.", min=0, max=86400
        ),
    ] = 0,
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
        onnx-textgen serve MODELS --max-loaded 2 --idle-minutes 10
    """
    from .app import make_app  # noqa: PLC0415  (slow, and `--help` does not need it)
    from .pool.model_pool import ModelPool, PoolLimits  # noqa: PLC0415
    from .pool.sources import LoadOptions, find_sources, with_response_templates  # noqa: PLC0415
    from .state import Settings  # noqa: PLC0415
    from .transport.process import run_server  # noqa: PLC0415

    check_access(host, api_key, allow_public=allow_public)
    settings = Settings(
        api_key=api_key,
        max_texts=max_texts,
        max_seconds=max_time,
        max_body_bytes=max_body,
        hosts=names_of(host),
        origins=allow_origin or (),
    )
    options = LoadOptions(device, threads, batch_size, prefix_folder, prefix_folder_bytes, whole_past, exact_history, fetch_images)
    idle_seconds = None if idle_minutes is None else 60 * idle_minutes
    listeners = listen(host, port)  # first, because a port in use should be reported before models load
    try:
        fetch = functools.partial(fetch_model, say=lambda line: typer.echo(line, err=True))
        sources, at_start = find_sources(packages or [None], options, fetch)
        sources = with_response_templates(sources, response_template or ())
        pool = ModelPool(sources, PoolLimits(max_loaded, idle_seconds, max_waiting=max_texts))
        server_app = make_app(pool, settings)
        pool.open_at_start(at_start)
        for problem in pool.problems():
            typer.echo(visible(f"warning: {problem}"), err=True)
        typer.echo(visible(f"{', '.join(pool.members)} at http://{in_url(host)}:{port}/v1 (Ctrl-C ends it)"), err=True)
        run_server(server_app, listeners, drain_seconds=drain)
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
