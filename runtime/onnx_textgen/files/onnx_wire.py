"""The bytes of an ONNX file as messages of numbered fields (protobuf), to change a graph where the onnx package is not installed.

Fields that nobody asks for stay as they are, byte for byte. What the numbers mean is in onnx.proto; nothing here knows it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from ..errors import PackageError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""How a field is written."""
FIXED = {FIXED64: 8, FIXED32: 4}
KEY_BITS = 2**32 - 1
"""Of a field's number and kind, that count: all readers pass over the others."""
MOST_BITS = 70
"""Of a number: ten bytes, as for all readers."""

Value = int | bytes
Given: TypeAlias = "int | str | bytes | Message"
Field = tuple[int, int, Value]
"""Number, way of writing, value."""
Place = tuple[int, int, int, int]
"""Number, way of writing, where its value begins and ends."""


class Message:
    """Fields in their order; those of one number are a list.

    >>> message = Message().add(1, "x").add(3, -2)
    >>> Message(bytes(message)).fields
    [(1, 2, b'x'), (3, 0, 18446744073709551614)]
    """

    def __init__(self, data: bytes = b"") -> None:
        """Raises `PackageError` where the bytes are no message."""
        self.fields: list[Field] = list(read_fields(data))

    def __bytes__(self) -> bytes:
        return b"".join(written(*field) for field in self.fields)

    def add(self, number: int, *values: Given) -> Message:
        """Append fields of one number; returns the message itself."""
        self.fields += [field_of(number, value) for value in values]
        return self

    def replace(self, number: int, values: Iterable[Given]) -> None:
        """Put these in the place of all fields of a number."""
        self.fields = [field for field in self.fields if field[0] != number]
        self.add(number, *values)

    def contents(self, number: int) -> list[bytes]:
        """What the fields of a number hold, as bytes."""
        return [value for found, _, value in self.fields if found == number and isinstance(value, bytes)]

    def messages(self, number: int) -> list[Message]:
        """The same as messages."""
        return [Message(value) for value in self.contents(number)]

    def texts(self, number: int) -> list[str]:
        """The same as text."""
        return [value.decode("utf-8", "replace") for value in self.contents(number)]

    def text(self, number: int) -> str:
        """The text of a field; empty where there is none."""
        return "".join(self.texts(number)[-1:])

    def number(self, number: int) -> int:
        """The number of a field; 0 where there is none."""
        return next((value for found, _, value in reversed(self.fields) if found == number and isinstance(value, int)), 0)


def field_of(number: int, value: Given) -> Field:
    """A field as it is kept; negative numbers in two's complement of 64 bits."""
    if isinstance(value, int):
        return number, VARINT, value % 2**64
    return number, BYTES, value.encode() if isinstance(value, str) else bytes(value)


def read_fields(data: bytes) -> Iterator[Field]:
    """The fields of a message; raises `PackageError` where it ends in the middle of one, or has one of an unknown kind."""
    for number, kind, start, end in read_places(data, 0, len(data)):
        yield number, kind, read_varint(data, start)[0] if kind == VARINT else data[start:end]


def read_places(data: bytes | mmap.mmap, start: int, end: int) -> Iterator[Place]:
    """Where the fields of the message lie that `data` has from `start` to `end`; raises what `read_fields` does."""
    while start < end:
        key, start = read_varint(data, start)
        number, kind = (key & KEY_BITS) >> 3, key & 7
        if kind == VARINT:
            stop = read_varint(data, start)[1]
        elif kind == BYTES:
            size, start = read_varint(data, start)
            stop = start + size
        else:
            stop = start + FIXED[kind] if kind in FIXED else end + 1  # of a kind that ONNX does not use
        if stop > end:
            raise PackageError("the graph's file is not whole; export or fetch the model again")
        yield number, kind, start, stop
        start = stop


def read_varint(data: bytes | mmap.mmap, place: int) -> tuple[int, int]:
    """A number of seven bits a byte, and the place behind it.

    >>> read_varint(bytes([0xAC, 0x02]), 0)
    (300, 2)
    """
    value = shift = 0
    while place < len(data) and shift < MOST_BITS:
        byte, place = data[place], place + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, place
    return value, len(data) + 1


def varint(value: int) -> bytes:
    """The inverse of `read_varint`."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def written(number: int, kind: int, value: Value) -> bytes:
    """The bytes of a field."""
    key = varint(number << 3 | kind)
    if isinstance(value, int):
        return key + varint(value)
    return key + (varint(len(value)) if kind == BYTES else b"") + value
