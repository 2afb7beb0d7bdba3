"""Compares the sizes that a file declares with what the file holds, before anything of these sizes is built."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onnx_textgen.options.checks import shown
from onnx_textgen.package.manifest import LARGEST_SIZE

from ..errors import ExportError

LAYERS = re.compile(r"(num_hidden|num|n)_layers?|(num_)?(encoder|decoder)(_hidden)?_layers|(decoder_)?block_count")
SIZES = re.compile(r"(size|dim|heads?|layers?|experts|rank|positions|embeddings|length|count|width|inner)$")
MOST_EXPERTS = 10_000
MOST_DEPTH = 8


def sizes_in(settings: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers of settings by their names, those of nested settings too."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and depth < MOST_DEPTH:
            yield from sizes_in(value, depth + 1)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield str(name), value


def check_sizes(settings: Mapping[str, Any], *, tensors: int, where: Path) -> None:
    """Raise `ExportError` for more layers than the file has tensors, and for sizes that no model has."""
    for name, size in sizes_in(settings):
        own = name.rpartition(".")[2]
        most = tensors if LAYERS.fullmatch(own) else MOST_EXPERTS if own.endswith("experts") else LARGEST_SIZE
        if SIZES.search(own) and size > most:
            why = f"and {tensors:,} tensors" if most == tensors else f"and {most:,} is the limit"
            raise ExportError(f"{where} says {shown(name)[1:-1]} {shown(size)}, {why}; fetch the model again")
