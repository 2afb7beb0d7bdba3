"""Exports a model into the cache of models of the runtime, which finds this by its entry point."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import typer

from .errors import ExportError
from .exporting.exporter import export_source, has_pictures, images_of
from .exporting.options import ExportOptions
from .stages import begin_export
from .tracing.opening import as_source, open_source


def make_package(source: str, folder: Path, name: str, origin: str | None, precision: str | None) -> None:
    """Export a source to a folder, replacing an older package, with the stages on stderr.

    precision: None keeps the numbers of a quantised source, and rounds others to 8 bits. Hidden states and attention maps are made
    where the source has them; a part that reads pictures is left out if it cannot be exported. Raises `ExportError`, and leaves the
    folder unchanged, if the source cannot be exported.
    """
    stages = begin_export()
    stages.begin("load")
    opened = open_source(source, report=stages.begin)
    chosen = precision or ("as-stored" if opened.weights.stored else "int8")
    options = ExportOptions(precision=chosen, name=name, origin=origin or opened.origin, force=True)  # type: ignore[arg-type]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with as_source(opened, None) as made:
        # For embeddings and the page's maps: an output and a small graph, which the export can have only now.
        has_states, has_maps = made.encoder is None and made.head is not None, made.attentions is not None
        options = dataclasses.replace(options, hidden_states=has_states, attention_maps=has_maps)
        more: dict[str, Any] = {"source_path": opened.source_path, "report": stages.begin}
        write = functools.partial(export_source, made, opened.weights, folder, assets=opened.assets, options=options, **more)
        try:
            write(images=images_of(opened, stages.begin, options))
        except ExportError as error:
            if not has_pictures(opened.module):
                raise
            from .images.opening import HINT  # noqa: PLC0415 - with transformers, which the source has imported by now

            stages.begin(f"images: left out, the text part is exported alone: {str(error).removesuffix(HINT)}")
            write()
    stages.begin(None)
    typer.echo(f"{name} is in {folder}", err=True)
