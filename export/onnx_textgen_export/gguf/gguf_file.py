"""The tensors and the metadata of a GGUF file, or of one that is split into parts: read within the file's bounds, one at a time.

The package `gguf`, llama.cpp's own, reads the format and dequantises most kinds. It trusts the sizes that a file declares, so they
are checked here: `numpy` cuts a slice beyond the end short without an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from onnx_textgen.errors import first_line
from onnx_textgen.recipes import k_quants
from onnx_textgen.recipes.sources import SUPER_BLOCKS

from ..errors import ExportError, failing_as
from ..threads import for_each

MAGIC = b"GGUF"
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
MOST_ITEMS = 1 << 21
"""Items of an array; the largest vocabularies have a quarter of a million tokens."""
MOST_ENTRIES, MOST_TENSORS = 10_000, 200_000
MOST_DIMENSIONS = 4
VOCABULARY = "tokenizer.ggml."
"""What the keys of the tokenizer begin with."""
PLAIN_KINDS = frozenset({"F64", "F32", "F16", "BF16"})
"""Kinds of tensors that are not quantised."""
BYTES_AT_A_TIME = 1 << 19
"""Bytes that are dequantised in a step."""


class BoundedReader(gguf.GGUFReader):
    """A reader that raises `ValueError` for sizes and counts that the file cannot hold."""

    def _get(self, offset: int, dtype: npt.DTypeLike, count: int = 1, override_order: Any = None) -> npt.NDArray[Any]:  # noqa: ANN401
        if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise ValueError("it ends before the data that it declares")
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:  # noqa: ANN401 - a tuple of gguf's own types
        """Read arrays at once, as `gguf` takes half a minute for a vocabulary of 150,000 tokens, item by item."""
        if raw_type != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind = gguf.GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        length, start = int(self._get(orig_offs + 4, np.uint64)[0]), orig_offs + 12
        if kind == gguf.GGUFValueType.ARRAY or length > MOST_ITEMS:
            raise ValueError("it declares an array that no model has")
        if kind == gguf.GGUFValueType.STRING:
            parts, end = self.texts(start, length)
        else:
            values = self._get(start, self.gguf_scalar_to_np[kind], length).view(np.ndarray)
            parts, end = [values[place : place + 1] for place in range(length)], start + values.nbytes
        return end - orig_offs, parts, list(range(length)), [gguf.GGUFValueType(raw_type), *([kind] if length else [])]

    def texts(self, start: int, count: int) -> tuple[list[npt.NDArray[np.uint8]], int]:
        """The bytes of texts that follow each other, and where they end."""
        data, order = self.data.view(np.ndarray), np.dtype(np.uint64).newbyteorder(self.byte_order)
        found, place = [], start
        for _ in range(count):
            length = int(data[place : place + 8].view(order)[0]) if place + 8 <= len(data) else len(data)
            if place + 8 + length > len(data):
                raise ValueError("it ends before the data that it declares")
            found.append(data[place + 8 : place + 8 + length])
            place += 8 + length
        return found, place

    def _build_fields(self, offs: int, count: int) -> int:
        if count > MOST_ENTRIES:
            raise ValueError("it declares more metadata than any model has")
        return super()._build_fields(offs, count)

    def _build_tensor_info(self, offs: int, count: int) -> Any:  # noqa: ANN401 - a tuple of gguf's own types
        if count > MOST_TENSORS:
            raise ValueError("it declares more tensors than any model has")
        return super()._build_tensor_info(offs, count)

    def _get_tensor_info_field(self, orig_offs: int) -> Any:  # noqa: ANN401 - gguf's own type
        field = super()._get_tensor_info_field(orig_offs)
        dimensions = [int(size) for size in field.parts[3]]
        product = 1
        for size in dimensions:
            product *= size
        if len(dimensions) > MOST_DIMENSIONS or product > 8 * len(self.data):
            raise ValueError("it declares a tensor that is larger than the file")
        return field


class GGUFFile:
    """An open GGUF file with all its parts."""

    def __init__(self, path: Path) -> None:
        """Open `path` and the parts that belong to it; raises `ExportError` if one is missing, torn or no GGUF file."""
        self.paths = parts_of(path)
        self.tensors: dict[str, Any] = {}
        """By the name in the file."""
        self.metadata: dict[str, Any] = {}
        """By key: numbers, texts, and lists of them."""
        self.finite = set[str]()
        """Tensors that were read, and have no NaN."""
        readers = list[BoundedReader]()
        for part in self.paths:
            with failing_as(f"{part} is no whole GGUF file", "; fetch it again"):
                readers.append(reader := BoundedReader(part))
                self.tensors |= {tensor.name: tensor for tensor in reader.tensors}
                self.metadata = {key: field.contents() for key, field in reader.fields.items()} | self.metadata
        if not self.tensors:
            raise ExportError(f"{path} holds no tensors; give the file, or the first part, that holds the model")
        self.first_reader = without_vocabulary(readers[0])
        """Of the first part, which says what the model is."""

    def kind(self, name: str) -> str:
        """How a tensor is stored, by llama.cpp's name."""
        return str(self.tensors[name].tensor_type.name)

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor in float32, dequantised; raises `ExportError` for a type that `gguf` cannot dequantise, and for NaN."""
        tensor = self.tensors[name]
        try:
            values = dequantized(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            raise ExportError(
                f"{self.paths[0]} stores {name} as {tensor.tensor_type.name}, which cannot be read: {first_line(error)}; "
                "give the file in another quantisation"
            ) from error
        if name not in self.finite and not np.isfinite(values).all():
            raise ExportError(f"{name} in {self.paths[0]} has numbers that are not finite; the file is damaged, fetch it again")
        self.finite.add(name)
        return values


def dequantized(data: npt.NDArray[Any], kind: gguf.GGMLQuantizationType) -> npt.NDArray[np.float32]:
    """Like `gguf.dequantize`, which works on 16 rows at a time: in steps as large as the cache, by all threads."""
    plain = np.asarray(data)  # without the costs of a memmap at every slice
    rows = plain.reshape(-1, plain.shape[-1])
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    values = np.empty((len(rows), rows.shape[1] * rows.itemsize // block_bytes * block), np.float32)
    together = max(BYTES_AT_A_TIME // max(rows.shape[1] * rows.itemsize, 1), 1)
    read = read_k_quants if kind.name in SUPER_BLOCKS else read_others

    def fill(start: int) -> None:
        with np.errstate(all="ignore"):  # of damaged scales
            read(rows[start : start + together], kind, values[start : start + together])

    for_each(range(0, len(rows), together), fill)
    return values.reshape(*plain.shape[:-1], -1)


def read_k_quants(rows: npt.NDArray[np.uint8], kind: gguf.GGMLQuantizationType, values: npt.NDArray[np.float32]) -> None:
    """Dequantise rows into `values`."""
    found = k_quants.read(rows, kind.name)
    found.numbers_of(found.codes, out=values.reshape(found.codes.shape))


def read_others(rows: npt.NDArray[Any], kind: gguf.GGMLQuantizationType, values: npt.NDArray[np.float32]) -> None:
    """Dequantise rows into `values`."""
    values[:] = gguf.dequantize(rows.reshape(1, -1), kind).reshape(len(rows), -1)


def without_vocabulary(reader: BoundedReader) -> BoundedReader:
    """Drop the long lists of a reader; the list of tokens keeps its length alone, with empty texts."""
    for key in [key for key in reader.fields if key.startswith(VOCABULARY)]:
        field = reader.fields[key]
        if key == f"{VOCABULARY}tokens":
            reader.fields[key] = field._replace(parts=[np.empty(0, np.uint8)], data=[0] * len(field.data))
        elif len(field.types) > 1:
            del reader.fields[key]
    return reader


def parts_of(path: Path) -> list[Path]:
    """All parts of a split file, in order; the path itself if its name is no part's."""
    found = PART.fullmatch(path.name)
    if found is None:
        return [path]
    parts = [path.with_name(f"{found[1]}-{number:05}-of-{found[3]}.gguf") for number in range(1, min(int(found[3]), 9999) + 1)]
    if missing := [part for part in parts if not part.is_file()]:
        raise ExportError(f"{path} is one of {len(parts)} parts, and {missing[0].name} is not there; put all parts into one folder")
    return parts


def is_gguf(path: Path) -> bool:
    """Return whether a path is a GGUF file, by its first bytes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
