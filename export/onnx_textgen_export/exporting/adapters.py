"""LoRA adapters that a package keeps next to its weights: read, written to the folder, and proved one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import nn

from onnx_textgen.backends.variants.adapter_file import LowRank, write_adapter
from onnx_textgen.backends.variants.adapter_graph import check_adapter
from onnx_textgen.backends.variants.linear_layers import LinearLayers
from onnx_textgen.errors import PackageError
from onnx_textgen.package.adapters import read_adapters
from onnx_textgen.package.manifest import GRAPH, AdapterRecord, adapter_file, is_adapter_name

from ..errors import ExportError, named_versions
from ..gguf.gguf_file import is_gguf
from ..passes.quantization.rounding import Roundings
from ..proof.adapters import ProvenAdapter
from ..proof.certificate import make_certificate
from ..proof.reference import Reference
from ..proof.same_weights import prove_with_rounding
from ..reports import Report, begin
from ..sources.source import Source
from ..tracing.hub import resolve_adapter
from ..tracing.opening import name_of
from ..weights.adapter import Adapter
from ..weights.streamed import Weights
from .options import ExportOptions

REMEDY = "leave out the adapter, or report this as a bug"


@dataclasses.dataclass(frozen=True, slots=True)
class KeptAdapter:
    """An adapter that a package keeps."""

    changes: dict[str, LowRank]
    """What it adds to each parameter."""
    origin: str

    @property
    def size_bytes(self) -> int:
        """Bytes of its matrices."""
        return sum(each.narrow.nbytes + each.wide.nbytes for each in self.changes.values())

    def record(self) -> AdapterRecord:
        """Its entry in the manifest, without a proof."""
        return AdapterRecord(max(each.rank for each in self.changes.values()), len(self.changes), self.origin)


def open_adapters(
    asked: Mapping[str, str | Path], module: nn.Module | None, *, allow_pickle: bool, report: Report = lambda stage: None
) -> dict[str, KeptAdapter]:
    """Read adapters, each given as its folder, a GGUF file, or `owner/name` on the hub, by the names that texts choose them by.

    module: the base, which a GGUF file needs. Raises `ExportError` for an adapter that is more than products of low rank, and for a
    name that no file can have.
    """
    found = dict[str, KeptAdapter]()
    for name, place in asked.items():
        if not is_adapter_name(name):
            raise ExportError(f"{name!r:.80} cannot name an adapter; take up to 64 letters, digits, dots, dashes or underscores")
        path = resolve_adapter(place, report, allow_pickle=allow_pickle)
        is_file = is_gguf(path)
        changes = read_gguf(path, module) if is_file else Adapter(path, allow_pickle=allow_pickle).low_rank()
        if not all(np.isfinite(each.narrow).all() and np.isfinite(each.wide).all() for each in changes.values()):
            raise ExportError(f"{path} has numbers that are not finite; train the adapter again, or copy it again")
        found[name] = KeptAdapter(changes, f"the adapter {path.name if is_file else name_of(place)}")
    return found


def read_gguf(path: Path, module: nn.Module | None) -> dict[str, LowRank]:
    """The products of an adapter in llama.cpp's form; raises `ExportError`, also without the base."""
    if module is None:
        raise ExportError(f"{path} names layers as llama.cpp does, which only the base can translate; add --against SOURCE")
    with named_versions():
        from ..gguf.gguf_adapter import read_gguf_adapter  # noqa: PLC0415

    return read_gguf_adapter(path, module)


def named_adapter(given: str) -> tuple[str | None, str]:
    """The name and the place of an adapter that is given as `NAME=DIR`; no name for `DIR` alone, or if there is such a path.

    >>> named_adapter("french=owner/adapter"), named_adapter("owner/adapter")
    (('french', 'owner/adapter'), (None, 'owner/adapter'))
    """
    name, is_named, place = given.partition("=")
    return (name, place) if is_named and not Path(given).exists() else (None, given)


def check_adapters(adapters: Mapping[str, KeptAdapter], layers: LinearLayers) -> None:
    """Raise `ExportError` for an adapter of another model."""
    for name, each in adapters.items():
        try:
            check_adapter(name, each.changes, layers)
        except PackageError as error:
            raise ExportError(str(error)) from error


def write_adapters(folder: Path, adapters: Mapping[str, KeptAdapter]) -> None:
    """Write the file of each adapter."""
    for name, each in adapters.items():
        write_adapter(folder / adapter_file(name), each.changes)


def prove_adapters(
    source: Source,
    weights: Weights,
    folder: Path,
    ids: list[int],
    *,
    adapters: Mapping[str, KeptAdapter],
    roundings: Roundings | None,
    options: ExportOptions,
    report: Report,
) -> dict[str, AdapterRecord]:
    """Compare the package and PyTorch, both with each adapter in turn, and return the entries of the manifest.

    Raises `ExportError` where they differ too much.
    """
    graph, precision, records = folder / GRAPH, options.chosen_precision, dict[str, AdapterRecord]()
    for name, each in adapters.items():
        told = begin(f"compare with PyTorch, adapter {name}", report)
        adapter = ProvenAdapter(name, each.changes, lambda: read_adapters(folder, adapters))
        found = prove_with_rounding(
            Reference(source),
            weights,
            graph,
            ids,
            precision=precision,
            remedy=REMEDY,
            roundings=roundings,
            adapter=adapter,
            report=told,
        )
        arithmetic = roundings.arithmetic if roundings is not None else "fp32"
        certificate = make_certificate(
            source, found.measured, found.exact, precision, size_bytes=each.size_bytes, arithmetic=arithmetic
        )
        records[name] = dataclasses.replace(each.record(), certificate=certificate, golden=found.golden)
    return records
