"""`onnx-textgen verify DIR --against SOURCE`: compare an existing package with PyTorch again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.backends.variants.adapter_graph import linear_layers
from onnx_textgen.package.adapters import read_adapters
from onnx_textgen.package.manifest import GRAPH, TOKENIZER, UNKNOWN, Manifest
from onnx_textgen.package.reading import read_manifest

from .errors import ExportError
from .exporting.adapters import check_adapters, named_adapter, open_adapters
from .exporting.checks import check_same_sizes
from .proof.adapters import ProvenAdapter, computing_with
from .proof.measures import TOLERANCES
from .proof.probe_text import probe_ids
from .proof.reference import Reference, judge_scenario
from .proof.scenarios import run_package
from .reports import Report
from .sources.source import Source
from .tracing.opening import as_source, open_source
from .tracing.turns import in_turn


@in_turn
def verify_against(folder: Path, source: str, report: Report, *, adapter: str | None = None) -> list[dict[str, Any]]:
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
    name, place = (None, None) if adapter is None else named_adapter(adapter)
    if name is not None and name not in manifest.adapters:
        raise ExportError(f"{folder} has no adapter {name}; it has: {', '.join(manifest.adapters) or 'none'}")
    opened = open_source(source, tokenizer=tokenizer, adapter=place if name is None else None, report=report)
    with as_source(opened, manifest.geometry.context_length) as made:
        check_same_sizes(folder, manifest, source, made)
        kept = kept_adapter(folder, manifest, name, str(place), made) if name is not None else None
        report("run the package")
        fed, _ = run_package(made, folder / GRAPH, probe_ids(made, tokenizer), kept)
        report("compare with PyTorch")
        reference, tolerance = Reference(made), TOLERANCES[manifest.precision]
        with opened.weights.present(), computing_with(kept, made.module):
            measured = [judge_scenario(reference, each) for each in fed]
    return [{**dataclasses.asdict(scenario), "admitted": tolerance.accepts(scenario)} for scenario in measured]


def kept_adapter(folder: Path, manifest: Manifest, name: str, place: str, source: Source) -> ProvenAdapter:
    """The adapter `name` of the package, which is compared with the one in `place`."""
    opened = open_adapters({name: place}, source.module, allow_pickle=False)
    check_adapters(opened, linear_layers(open_session(folder / GRAPH, device="cpu")))
    return ProvenAdapter(name, opened[name].changes, lambda: read_adapters(folder, manifest.adapters))
