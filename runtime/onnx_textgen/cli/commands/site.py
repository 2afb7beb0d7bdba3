"""`onnx-textgen site`: a folder of static files that runs a model in a visitor's browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...api import fetching
from ...errors import PackageError
from .. import options
from ..terminal import screen

GITHUB_LIMIT = 100 * 2**20
"""Bytes of the largest file that GitHub takes."""


def make_site(
    folder: options.FolderArgument = None,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="SITE", help="Folder to write the site to.")],
    model: options.ModelOption = None,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", metavar="TEXT", help="A prompt to begin with; may be repeated.")
    ] = None,
    cdn: Annotated[
        bool, typer.Option("--cdn", help="Browsers fetch the libraries from cdn.jsdelivr.net, and compare their sha256.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an older site, if it has no other files.")] = False,
    preview: Annotated[bool, typer.Option("--preview", help="Then serve it on this machine until Ctrl-C.")] = False,
    port: Annotated[
        int, typer.Option(metavar="N", help="With --preview: the port; 0 chooses a free one.", min=0, max=65535)
    ] = 8080,
) -> None:
    """Write a web site that runs a model in each visitor's browser, without a server.

    The site is static files for any host. Its libraries come from npm (needs Node.js) or, with --cdn, from jsDelivr.

    Try:
        onnx-textgen site story --out ./site --preview
        onnx-textgen site DIR --out ./site
        onnx-textgen site DIR --out ./site --cdn
    """
    from ...hub.lookup import locate  # noqa: PLC0415
    from ...package.foreign import folder_of, is_foreign  # noqa: PLC0415
    from ...package.locate import embedded_packages  # noqa: PLC0415
    from ...package.manifest import MANIFEST  # noqa: PLC0415
    from ...web_site.building import build_site  # noqa: PLC0415

    fetching.fetch_model(name := options.one_folder(folder, model), screen.note, screen.progress)
    if is_foreign(place := locate(name)):
        raise PackageError(
            f"{place} has no {MANIFEST}, which says what the browser has to check; export the model with onnx-textgen"
        )
    package = folder_of(place)
    prompts = prompt or ([options.DEFAULT_PROMPT] if package in embedded_packages().values() else [])
    screen.progress("building the site ...")
    try:
        built = build_site(package, out, prompts=prompts, cdn=cdn, replace=force)
    finally:
        screen.progress("")
    wasm, webgpu = (screen.size(built.visitor_bytes[device]) for device in ("wasm", "webgpu"))
    screen.say(f"{built.folder}: a visitor fetches {wasm} (WebAssembly) or {webgpu} (WebGPU), once")
    if built.largest_file > GITHUB_LIMIT:
        screen.note(f"its largest file has {screen.size(built.largest_file)}; GitHub takes files of up to 100 MiB")
    if preview:
        serve_site(built.folder, port)
    else:
        screen.note(
            f"next: publish the folder, or look at it with: onnx-textgen site {name or 'story'} --out {out} --force --preview"
        )


def serve_site(folder: Path, port: int) -> None:
    """Serve a site on 127.0.0.1 until Ctrl-C."""
    from ...hosts import listen  # noqa: PLC0415
    from ...web_site.preview import SiteServer  # noqa: PLC0415

    (listener,) = listen("127.0.0.1", port)
    with SiteServer(folder, listener) as server:
        screen.note(f"{server.address}  (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            screen.note("")
