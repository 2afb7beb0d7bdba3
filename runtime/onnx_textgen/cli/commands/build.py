"""`onnx-textgen build`: a package is rebuilt from its recipe and the weights that it was exported from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..terminal import screen


def build_package(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A file that export --recipe wrote.")],
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="The GGUF or safetensors file that it was written for.")],
    *,
    out: Annotated[Path, typer.Option(help="The model folder to make.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing model folder.")] = False,
) -> None:
    """Rebuild a model folder from its recipe and the weights that it was exported from, without PyTorch.

    Each file gets the bytes of the exported one, which was proved right; its sha256 is compared.

    Try:
        onnx-textgen build smollm2.recipe SmolLM2-135M-Instruct.Q4_1.gguf --out ./smollm2
    """
    from ...recipes.building import build  # noqa: PLC0415

    screen.progress(f"building {out} ...")
    made = build(recipe, source, out, force=force)
    screen.progress("")
    screen.note(f"{made} has the bytes of the proven export; next: onnx-textgen chat --model {made}")
