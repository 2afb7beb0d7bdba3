"""`onnx-textgen build`: a package is rebuilt from its recipe and the weights that it was exported from."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from ..terminal import screen
from ..terminal.next_step import next_step


def build_package(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A file that export --recipe wrote, or its https address.")],
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="The GGUF or safetensors file that it was written for.")],
    *,
    out: Annotated[Path, typer.Option(help="The model folder to make.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing model folder.")] = False,
) -> None:
    """Rebuild a model folder from its recipe and the weights that it was exported from, without PyTorch.

    Each file gets the bytes of the exported one, which was proved right; its sha256 is compared.

    Try:
        onnx-textgen build smollm2.recipe SmolLM2-135M-Instruct.Q4_1.gguf --out ./smollm2
        onnx-textgen build https://example.com/my.recipe my.gguf --out ./my-model
    """
    from ...hub.addresses import fetched  # noqa: PLC0415
    from ...options.checks import is_address  # noqa: PLC0415
    from ...recipes.building import build  # noqa: PLC0415
    from ...recipes.recipe import MOST_BYTES  # noqa: PLC0415

    with fetched(recipe, MOST_BYTES) if is_address(recipe) else contextlib.nullcontext(Path(recipe)) as file:
        screen.progress(f"building {out} ...")
        made = build(file, source, out, force=force)
        screen.progress("")
    screen.note(f"{made} has the bytes of the proven export; next: {next_step(made)}")
