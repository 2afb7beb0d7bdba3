"""`onnx-textgen list`: the models on this machine, with the names that `--model` takes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import options
from ..terminal import screen, tables

if TYPE_CHECKING:
    from ...diagnostics.inventory import Entry


def show_models(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="List the model folders in DIR instead.", show_default=False)
    ] = None,
    *,
    as_json: options.JsonOption = False,
) -> None:
    """List the models on this machine.

    Those that ship with onnx-textgen, those in its cache, and those in the cache of the Hugging Face hub. Nothing is fetched.

    Try:
        onnx-textgen list
        onnx-textgen list ./models --json
    """
    from ...diagnostics.inventory import list_models  # noqa: PLC0415

    found = list_models(folder)
    if as_json:
        older = [
            {"is_encoder_decoder": entry.architecture == "encoder-decoder"} for entry in found
        ]  # before there was a third kind
        screen.print_json({"models": [dataclasses.asdict(entry) | more for entry, more in zip(found, older, strict=True)]})
    elif found:
        draw([entry for entry in found if entry.problem is None])
        for entry in found:
            if entry.problem is not None:
                screen.note(f"warning: {entry.name} cannot be read: {entry.problem}")
    else:
        screen.note(f"no model folders in {folder}")


def draw(entries: list[Entry]) -> None:
    """Print a table with one row per model."""
    table = tables.Table(
        ("name", "precision", "size", "context", "chat", "from"),
        numbers=frozenset({"size", "context"}),
        prose=frozenset({"precision"}),
    )
    for entry in entries:
        size = "" if entry.size_bytes is None else screen.size(entry.size_bytes)
        context = "" if entry.context_length is None else f"{entry.context_length:,}"
        table.add(entry.name, entry.precision, size, context, chat_in_words(entry), entry.origin)
    tables.show_table(table)


def chat_in_words(entry: Entry) -> str:
    """Say whether a model can chat; encoders and encoder-decoders never can."""
    if entry.architecture != "decoder":
        return f"no: {entry.architecture}"
    return "yes" if entry.has_chat_template else "no"
