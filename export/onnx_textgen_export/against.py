"""`onnx-textgen verify DIR --against SOURCE`: compare an existing package with PyTorch again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from onnx_textgen.package.adapters import read_adapters
from onnx_textgen.package.manifest import GRAPH, TOKENIZER, UNKNOWN, Manifest
from onnx_textgen.package.reading import read_manifest

from .errors import ExportError
from .exporting.adapters import open_adapters
from .proof.adapters import ProvenAdapter, computing_with
from .proof.measures import TOLERANCES
from .proof.probe_text import probe_ids
from .proof.reference import Reference, judge_scenario
from .proof.scenarios import run_package
from .tracing.opening import as_source, open_source
from .tracing.turns import in_turn


@in_turn
def verify_against(folder: Path, source: str, report: Callable[[str], None], *, adapter: str | None = None) -> list[dict[str, Any]]:
    """Measure every scenario of the certificate again: its fields, and `admitted`, whether the precision allows the difference.

    source, adapter: what the package was exported from, as `export` takes it; `NAME=DIR` compares an adapter that the package keeps
    with that of a folder. Raises `ExportError` for a source that does not
    open, or whose sizes differ from the package's.
    """
    manifest = read_manifest(folder)
    if manifest.precision == UNKNOWN:
        raise ExportError(f"{folder} does not say its precision, so there is no limit to compare with")
    report("load")
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER)) if TOKENIZER in manifest.files else None
    kept = kept_adapter(folder, manifest, adapter or "", report)
    opened = open_source(source, tokenizer=tokenizer, adapter=adapter if kept is None else None, report=report)
    with as_source(opened, manifest.geometry.context_length) as made:
        for name, size in dataclasses.asdict(made.geometry).items():
            if size != getattr(manifest.geometry, name):
                raise ExportError(
                    f"{folder} has {name} {getattr(manifest.geometry, name)} and {source} has {size}; "
                    "give the source that the package was exported from"
                )
        report("run the package")
        fed, _ = run_package(made, folder / GRAPH, probe_ids(made, tokenizer), kept)
        report("compare with PyTorch")
        reference, tolerance = Reference(made), TOLERANCES[manifest.precision]
        with opened.weights.present(), computing_with(kept, made.module):
            measured = [judge_scenario(reference, each) for each in fed]
    return [{**dataclasses.asdict(scenario), "admitted": tolerance.accepts(scenario)} for scenario in measured]


def kept_adapter(folder: Path, manifest: Manifest, given: str, report: Callable[[str], None]) -> ProvenAdapter | None:
    """The adapter of the package that `NAME=DIR` means; None for anything else."""
    name, _, place = given.partition("=")
    if name not in manifest.adapters or not place:
        return None
    changes = open_adapters({name: place}, allow_pickle=False, report=report)[name].changes
    return ProvenAdapter(name, changes, lambda: read_adapters(folder, manifest.adapters))
