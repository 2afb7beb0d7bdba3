"""`onnx-textgen verify DIR --against SOURCE`: compare an existing package with PyTorch again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from onnx_textgen.package.manifest import GRAPH, TOKENIZER, UNKNOWN
from onnx_textgen.package.reading import read_manifest

from .errors import ExportError
from .proof.measures import TOLERANCES
from .proof.probe_text import probe_ids
from .proof.reference import Reference, judge_scenario
from .proof.scenarios import run_package
from .tracing.opening import as_source, open_source
from .tracing.turns import in_turn


@in_turn
def verify_against(folder: Path, source: str, report: Callable[[str], None], *, adapter: str | None = None) -> list[dict[str, Any]]:
    """Measure every scenario of the certificate again: its fields, and `admitted`, whether the precision allows the difference.

    source, adapter: what the package was exported from, as `export` takes it. Raises `ExportError` for a source that does not
    open, or whose sizes differ from the package's.
    """
    manifest = read_manifest(folder)
    if manifest.precision == UNKNOWN:
        raise ExportError(f"{folder} does not say its precision, so there is no limit to compare with")
    report("load")
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER)) if TOKENIZER in manifest.files else None
    opened = open_source(source, tokenizer=tokenizer, adapter=adapter, report=report)
    with as_source(opened, manifest.geometry.context_length) as made:
        for name, size in dataclasses.asdict(made.geometry).items():
            if size != getattr(manifest.geometry, name):
                raise ExportError(
                    f"{folder} has {name} {getattr(manifest.geometry, name)} and {source} has {size}; "
                    "give the source that the package was exported from"
                )
        report("run the package")
        fed, _ = run_package(made, folder / GRAPH, probe_ids(made, tokenizer))
        report("compare with PyTorch")
        reference, tolerance = Reference(made), TOLERANCES[manifest.precision]
        with opened.weights.present():
            measured = [judge_scenario(reference, each) for each in fed]
    return [{**dataclasses.asdict(scenario), "admitted": tolerance.accepts(scenario)} for scenario in measured]
