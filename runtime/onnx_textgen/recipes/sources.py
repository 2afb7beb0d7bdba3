"""Where the tensors of a weights file lie, GGUF or safetensors, read within limits and with NumPy alone.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import PackageError
from ..files.text_files import parse_json

Bytes = npt.NDArray[np.uint8]
MAGIC = b"GGUF"
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of a GGUF file's settings, as `struct` calls them."""
TEXT, ARRAY = 8, 9
KINDS = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 30: "BF16"} | {
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
}
"""Kinds of tensors that recipes know, by their numbers in GGUF."""
BLOCKS = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34}
"""Bytes of a block of 32 numbers."""
SUPER_BLOCKS = {"Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
"""Bytes of a super-block of 256 numbers."""
BLOCK, SUPER_BLOCK = 32, 256
WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}
MOST_ENTRIES, MOST_TENSORS, MOST_ITEMS, MOST_HEADER = 10_000, 200_000, 1 << 21, 1 << 26


@dataclasses.dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's place in the file: rows of bytes."""

    kind: str
    rows: int
    row_bytes: int
    start: int


class WeightsFile:
    """The tensors of an open file."""

    def __init__(self, path: Path) -> None:
        """Raise `PackageError` for a file that is neither, or that declares more than it holds."""
        try:
            with path.open("rb") as file:
                self.content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.heads: frozenset[int] = frozenset()
            """Numbers of heads in a GGUF file's settings."""
            if self.content[: len(MAGIC)] == MAGIC:
                self.tensors, settings = gguf_tensors(self.content)
                names = ("attention.head_count", "attention.head_count_kv")
                counts = (value for name, value in settings.items() if name.endswith(names))
                self.heads = frozenset(count for count in counts if isinstance(count, int))
            else:
                self.tensors = safetensors_tensors(self.content)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, struct.error, UnicodeDecodeError) as error:
            raise PackageError(f"{path} is no whole GGUF or safetensors file; fetch it again") from error
        for name, each in self.tensors.items():
            if not 0 <= each.start <= each.start + each.rows * each.row_bytes <= len(self.content):
                raise PackageError(f"{path} ends before its tensor {name!r:.80}; fetch it again")

    def rows(self, name: str) -> Bytes:
        """The bytes of a tensor's rows [rows, bytes], in the file's memory."""
        each = self.tensors[name]
        return np.frombuffer(self.content, np.uint8, each.rows * each.row_bytes, each.start).reshape(each.rows, each.row_bytes)


class Cursor:
    """Reads a GGUF file's header from its beginning."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content, self.at = content, len(MAGIC)

    def take(self, types: str) -> tuple[int, ...]:
        """The next numbers."""
        found = struct.unpack_from(f"<{types}", self.content, self.at)
        self.at += struct.calcsize(f"<{types}")
        return found

    def text(self) -> str:
        """The next text."""
        (length,) = self.take("Q")
        if length > len(self.content) - self.at:
            raise ValueError("a text ends outside the file")
        self.at += length
        return self.content[self.at - length : self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> object:
        """The next value; what is no number is only passed over."""
        if kind in NUMBERS:
            return self.take(NUMBERS[kind])[0]
        if kind == TEXT:
            self.text()
            return None
        if kind != ARRAY:
            raise ValueError("an unknown type")
        inner, count = self.take("IQ")
        if inner == ARRAY or count > MOST_ITEMS:
            raise ValueError("an array that no model has")
        if inner in NUMBERS:
            self.at += count * struct.calcsize(f"<{NUMBERS[inner]}")
        else:
            for _ in range(count):
                self.value(inner)
        return None


def gguf_tensors(content: mmap.mmap) -> tuple[Mapping[str, StoredTensor], Mapping[str, object]]:
    """The tensors of a GGUF file, those of kinds that no recipe knows left out, and the settings that are numbers."""
    cursor = Cursor(content)
    version, tensors, entries = cursor.take("IQQ")
    if version not in (2, 3) or tensors > MOST_TENSORS or entries > MOST_ENTRIES:
        raise ValueError("counts that no model has")
    settings = {}
    for _ in range(entries):
        name = cursor.text()
        settings[name] = cursor.value(cursor.take("I")[0])
    places = list[tuple[str, str, tuple[int, ...], int]]()
    for _ in range(tensors):
        name = cursor.text()
        (dimensions,) = cursor.take("I")
        sizes = cursor.take("Q" * min(dimensions, 5))
        number, offset = cursor.take("IQ")
        if number in KINDS and 1 <= len(sizes) < 5:
            places.append((name, KINDS[number], sizes, offset))
    alignment = settings.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
        raise ValueError("an alignment that no file has")
    start = -(-cursor.at // alignment) * alignment
    found = {}
    for name, kind, (columns, *more), offset in places:
        size, block_bytes = block_of(kind)
        if columns % size:
            raise ValueError("a row that is no whole number of blocks")
        row = columns // size * block_bytes
        found[name] = StoredTensor(kind, math.prod(more), row, start + offset)
    return found, settings


def block_of(kind: str) -> tuple[int, int]:
    """Numbers and bytes of a block of a kind; those of floats are single numbers."""
    if kind in SUPER_BLOCKS:
        return SUPER_BLOCK, SUPER_BLOCKS[kind]
    return (BLOCK, BLOCKS[kind]) if kind in BLOCKS else (1, WIDTHS[kind])


def safetensors_tensors(content: mmap.mmap) -> Mapping[str, StoredTensor]:
    """The tensors of a safetensors file, those of types that no recipe knows left out."""
    (length,) = struct.unpack_from("<Q", content, 0)
    if length > min(MOST_HEADER, len(content) - 8):
        raise ValueError("a header that ends outside the file")
    found = {}
    for name, entry in parse_json(content[8 : 8 + length].decode("utf-8")).items():
        if name == "__metadata__" or entry["dtype"] not in WIDTHS:
            continue
        *more, columns = [int(size) for size in entry["shape"]] or [1]
        start, end = (int(offset) for offset in entry["data_offsets"])
        stored = StoredTensor(entry["dtype"], math.prod(more), columns * WIDTHS[entry["dtype"]], 8 + length + start)
        if min(columns, *more, 0) < 0 or stored.rows * stored.row_bytes != end - start:
            raise ValueError("a tensor whose size is not that of its shape")
        found[name] = stored
    return found
