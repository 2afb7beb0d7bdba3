"""`onnx-textgen push`: uploads a model folder, or a recipe, to the hub, with a model card."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ...errors import OptionError
from ...options.checks import shown
from ..terminal import screen

LICENCE = re.compile(r"[a-z][a-z\d.-]*")
"""Of a licence on the hub, which names them in small letters; it goes into the card."""
NO_TEXT = ("no", "yes", "on", "off", "true", "false", "null", "y", "n")
"""Words that YAML reads as something else than text."""


def push_model(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A model folder or a name from: onnx-textgen list; or a recipe, for a repository that has its source.",
        ),
    ],
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub; made if there is none.")],
    *,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private; refuse a public one.")] = False,
    licence: Annotated[
        str | None, typer.Option("--license", metavar="ID", help="Licence, by the hub's name; else the one that the origin names.")
    ] = None,
    base: Annotated[str | None, typer.Option("--base-model", metavar="OWNER/NAME", help="Original model on the hub.")] = None,
) -> None:
    """Upload a model folder to the Hugging Face hub, with a card that holds its proof, its files and the commands that run it.

    Files are compared with their hashes first. Log in with: hf auth login. A README.md that is not of this command stays.

    Try:
        onnx-textgen push ./my-model me/my-model --license apache-2.0
        onnx-textgen push model.recipe me/my-model-GGUF
    """
    screen.say(push(folder, repository, private=private, licence=licence, base=base))


def push(folder: Path, repository: str, *, private: bool = False, licence: str | None = None, base: str | None = None) -> str:
    """Check and upload a folder or a recipe; returns the line that says where it is."""
    from ...hub import pushing  # noqa: PLC0415
    from ...hub.lookup import RECIPE  # noqa: PLC0415
    from ...hub.model_cache import find_cached  # noqa: PLC0415
    from ...package.end_tokens import read_template  # noqa: PLC0415
    from ...package.integrity import check_files  # noqa: PLC0415
    from ...package.locate import find_package  # noqa: PLC0415
    from ...package.manifest import MANIFEST  # noqa: PLC0415
    from ...package.reading import read_manifest  # noqa: PLC0415
    from ...recipes.recipe import read_recipe  # noqa: PLC0415
    from .model_card import model_card, recipe_card  # noqa: PLC0415

    pushing.check_name("the repository", repository)
    if base is not None:
        pushing.check_name("--base-model", base)
    licence = licence and licence.lower()
    if licence and (not LICENCE.fullmatch(licence) or licence in NO_TEXT):
        raise OptionError(f"--license should be a licence by the hub's name, such as apache-2.0, found {shown(licence)}")
    if folder.is_file():
        card = recipe_card(repository, read_recipe(folder).origin.name, licence=licence, base=base)
        files = {RECIPE: folder}
    else:
        folder = find_cached(str(folder)) or find_package(str(folder))
        manifest = read_manifest(folder)
        check_files(folder, manifest)
        card = model_card(manifest, repository, has_chat=read_template(folder) is not None, licence=licence, base=base)
        files = {name: folder / name for name in (MANIFEST, *manifest.files)}
    pushed = pushing.push(repository, files, card, private=private, report=screen.note)
    if pushed.has_card and "\nlicense:" not in card:
        screen.note("the card names no licence; push again with --license ID")
    return f"{pushed.address}; run it anywhere with: onnx-textgen pull {repository}"
