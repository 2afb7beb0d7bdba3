"""Adds a LoRA adapter to an existing package, or removes one: `onnx-textgen adapter`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.backends.variants.adapter_file import Changes, write_adapter
from onnx_textgen.backends.variants.adapter_graph import linear_layers
from onnx_textgen.files.replace import replaced_file
from onnx_textgen.package.adapters import read_adapters
from onnx_textgen.package.integrity import check_files, file_record
from onnx_textgen.package.manifest import (
    GRAPH,
    TOKENIZER,
    UNKNOWN,
    AdapterRecord,
    Manifest,
    adapter_file,
)
from onnx_textgen.package.reading import read_manifest

from .errors import ExportError
from .exporting.adapters import REMEDY, KeptAdapter, check_adapters, open_adapters
from .exporting.checks import check_same_sizes
from .package.folder import only_writer, replace_manifest, writing
from .proof.adapters import ProvenAdapter
from .proof.certificate import make_certificate, prove
from .proof.measures import TOLERANCES
from .proof.probe_text import probe_ids
from .proof.reference import Reference
from .reports import Report
from .sources.source import Source
from .tracing.opening import as_source, name_of, open_source
from .tracing.turns import in_turn
from .weights.streamed import Weights


@in_turn
def add_adapter(
    folder: str | Path,
    adapter: str | Path,
    *,
    name: str | None = None,
    against: str | None = None,
    force: bool = False,
    allow_pickle: bool = False,
    report: Report = lambda stage: None,
) -> tuple[str, AdapterRecord]:
    """Add a LoRA adapter to a package; returns the name that texts choose it by, and its entry in the manifest.

    adapter: its folder, `owner/name` on the hub, or a GGUF file (with `against`). name: default: the folder's or file's. against:
    the source that the package was exported from, to compare the package with PyTorch; without it the adapter is only checked by
    names and shapes. force: replace an adapter of this name. Raises `ExportError` or `PackageError` with the package unchanged.
    """
    folder, name = Path(folder).resolve(), name or name_of(adapter).removesuffix(".gguf")
    with writing(folder), only_writer(folder), contextlib.ExitStack() as stack:
        manifest = read_manifest(folder)  # while no other command can change it
        check_files(folder, manifest)
        check_name(folder, manifest, name, force=force)
        base = stack.enter_context(open_base(folder, manifest, against, report))
        module = None if base is None else base.source.module
        kept = open_adapters({name: adapter}, module, allow_pickle=allow_pickle, report=report)[name]
        session = open_session(folder / GRAPH, device="cpu")
        check_adapters({name: kept}, linear_layers(session))
        every = read_adapters(folder, manifest.adapters) | {name: kept.changes}
        proven = ProvenAdapter(name, kept.changes, lambda: every)
        proven.opened(session)  # raises if the graph cannot hold them all
        record = kept.record()
        if base is not None:
            report("compare with PyTorch")
            record = compare(folder, manifest, base, proven, kept)
        put_adapter(folder, manifest, name, kept.changes, record)
    return name, record


def check_name(folder: Path, manifest: Manifest, name: str, *, force: bool) -> None:
    """Raise `ExportError` for a name that another adapter has, also one that differs only in case: some systems ignore that."""
    if name in manifest.adapters and not force:
        raise ExportError(f"{folder} has an adapter {name} already; give another --name, or add --force to replace it")
    if other := [each for each in manifest.adapters if each != name and each.casefold() == name.casefold()]:
        raise ExportError(f"{folder} has an adapter {other[0]}, which some systems do not tell from {name}; give another --name")


@dataclasses.dataclass(frozen=True, slots=True)
class Base:
    """Source that a package was exported from."""

    source: Source
    weights: Weights
    ids: list[int]
    """Token ids to compare with."""


@contextlib.contextmanager
def open_base(folder: Path, manifest: Manifest, against: str | None, report: Report) -> Iterator[Base | None]:
    """Open what the package was exported from; None if `against` names nothing. Raises `ExportError` for another model."""
    report("load")
    if against is None:
        yield None
        return
    if manifest.precision == UNKNOWN:
        raise ExportError(f"{folder} does not say its precision, so there is no limit to compare with")
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER)) if TOKENIZER in manifest.files else None
    opened = open_source(against, tokenizer=tokenizer, report=report)
    with as_source(opened, manifest.geometry.context_length) as source:
        check_same_sizes(folder, manifest, against, source)
        yield Base(source, opened.weights, probe_ids(source, tokenizer))


def compare(folder: Path, manifest: Manifest, base: Base, adapter: ProvenAdapter, kept: KeptAdapter) -> AdapterRecord:
    """The adapter's entry in the manifest, with its comparison; raises `ExportError` for more than the precision allows."""
    assert manifest.precision != UNKNOWN, "open_base has checked"
    tolerance, graph = TOLERANCES[manifest.precision], folder / GRAPH
    measured, golden = prove(
        Reference(base.source), base.weights, graph, base.ids, tolerance=tolerance, remedy=REMEDY, adapter=adapter
    )
    certificate = make_certificate(base.source, measured, [], manifest.precision, size_bytes=kept.size_bytes)
    return dataclasses.replace(kept.record(), certificate=certificate, golden=golden)


def put_adapter(folder: Path, manifest: Manifest, name: str, changes: Changes, record: AdapterRecord) -> None:
    """Write the adapter's file, then the manifest; a kill in between leaves the package unchanged, or without the adapter."""
    path = folder / adapter_file(name)
    with replaced_file(path) as partial:
        write_adapter(partial, changes)
        if name in manifest.adapters:
            manifest = without_adapter(manifest, name)
            replace_manifest(folder, manifest)
    files, adapters = {**manifest.files, path.name: file_record(path)}, {**manifest.adapters, name: record}
    replace_manifest(folder, dataclasses.replace(manifest, files=files, adapters=adapters))


def remove_adapter(folder: str | Path, name: str) -> None:
    """Remove a LoRA adapter from a package; raises `ExportError` if there is none of this name."""
    folder = Path(folder).resolve()
    with writing(folder), only_writer(folder):
        manifest = read_manifest(folder)
        if name not in manifest.adapters:
            raise ExportError(f"{folder} has no adapter {name}; it has: {', '.join(manifest.adapters) or 'none'}")
        replace_manifest(folder, without_adapter(manifest, name))
        (folder / adapter_file(name)).unlink()


def without_adapter(manifest: Manifest, name: str) -> Manifest:
    """A manifest that does not list an adapter."""
    left = {each: known for each, known in manifest.adapters.items() if each != name}
    files = {each: known for each, known in manifest.files.items() if each != adapter_file(name)}
    return dataclasses.replace(manifest, adapters=left, files=files)
