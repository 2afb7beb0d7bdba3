"""Reads and writes the protobuf wire format of ONNX files, to change a graph without the onnx package.

Fields that a caller does not replace keep their bytes. This module knows no field numbers; onnx.proto defines them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from ..errors import PackageError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""
FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
"""Bytes of a value, by wire type."""
TAG_MASK = 2**32 - 1
"""The bits of a tag that count; every protobuf reader ignores the others."""
SMALL = 0x80
"""Varints below it have one byte."""
ONE_BYTE = [bytes([value]) for value in range(SMALL)]
MOST_VARINT_BITS = 70
"""Limit for a varint: ten bytes, as in every protobuf reader."""

Value = int | bytes
NewValue: TypeAlias = "int | str | bytes | Message"
Field = tuple[int, int, Value]
"""Field number, wire type, value."""
Span = tuple[int, int, int, int]
"""Field number, wire type, start and end of the value."""


class Message:
    """A message: its fields in order. Fields with the same number form a list.

    >>> message = Message().add(1, "x").add(3, -2)
    >>> Message(bytes(message)).fields
    [(1, 2, b'x'), (3, 0, 18446744073709551614)]
    """

    def __init__(self, data: bytes = b"") -> None:
        """Parse `data`; raises `PackageError` if it is not a message."""
        self.fields: list[Field] = list(read_fields(data))

    def __bytes__(self) -> bytes:
        return b"".join(encode_field(*field) for field in self.fields)

    def add(self, number: int, *values: NewValue) -> Message:
        """Append fields with this number; returns the message itself."""
        self.fields += [make_field(number, value) for value in values]
        return self

    def replace(self, number: int, values: Iterable[NewValue]) -> None:
        """Remove all fields with this number and append new ones."""
        self.fields = [field for field in self.fields if field[0] != number]
        self.add(number, *values)

    def contents(self, number: int) -> list[bytes]:
        """The bytes of each field with this number; varints are left out."""
        return [value for found, _, value in self.fields if found == number and isinstance(value, bytes)]

    def messages(self, number: int) -> list[Message]:
        """The fields with this number, each parsed as a message; raises `PackageError` if one is not a message."""
        return [Message(value) for value in self.contents(number)]

    def texts(self, number: int) -> list[str]:
        """The fields with this number, each decoded as UTF-8."""
        return [value.decode("utf-8", "replace") for value in self.contents(number)]

    def text(self, number: int) -> str:
        """The last field with this number, decoded as UTF-8; empty if there is none."""
        for found, _, value in reversed(self.fields):
            if found == number and isinstance(value, bytes):
                return value.decode("utf-8", "replace")
        return ""

    def number(self, number: int) -> int:
        """The last varint with this field number; 0 if there is none."""
        return next((value for found, _, value in reversed(self.fields) if found == number and isinstance(value, int)), 0)


def make_field(number: int, value: NewValue) -> Field:
    """Make a field; a negative integer becomes its 64-bit two's complement."""
    if isinstance(value, int):
        return number, VARINT, value % 2**64
    return number, BYTES, value.encode() if isinstance(value, str) else bytes(value)


def read_fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message; raises `PackageError` if the message is truncated or has an unknown wire type."""
    for number, wire_type, start, end in read_spans(data, 0, len(data)):
        yield number, wire_type, read_varint(data, start)[0] if wire_type == VARINT else data[start:end]


def read_spans(data: bytes | mmap.mmap, start: int, end: int) -> Iterator[Span]:
    """Yield the position of each field of the message in `data[start:end]`; raises the errors of `read_fields`."""
    while start < end:
        # Nearly all tags and sizes have one byte, and a graph has tens of thousands.
        if (tag := data[start]) < SMALL:
            start += 1
        else:
            tag, start = read_varint(data, start)
        number, wire_type = (tag & TAG_MASK) >> 3, tag & 7
        if wire_type == BYTES:
            if start < end and (size := data[start]) < SMALL:
                start += 1
            else:
                size, start = read_varint(data, start)
            stop = start + size
        elif wire_type == VARINT:
            stop = read_varint(data, start)[1]
        else:
            stop = start + FIXED_SIZES[wire_type] if wire_type in FIXED_SIZES else end + 1  # ONNX uses no other wire type
        if stop > end:
            raise PackageError("the graph's file is incomplete; export or fetch the model again")
        yield number, wire_type, start, stop
        start = stop


def read_varint(data: bytes | mmap.mmap, position: int) -> tuple[int, int]:
    """Read a varint, seven bits per byte; returns its value and the position after it, which is past the end if it is truncated.

    >>> read_varint(bytes([0xAC, 0x02]), 0)
    (300, 2)
    """
    value = shift = 0
    while position < len(data) and shift < MOST_VARINT_BITS:
        byte, position = data[position], position + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
    return value, len(data) + 1


def encode_varint(value: int) -> bytes:
    """The inverse of `read_varint`."""
    if value < SMALL:
        return ONE_BYTE[value]
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def encode_field(number: int, wire_type: int, value: Value) -> bytes:
    """The bytes of a field, its tag first."""
    tag = encode_varint(number << 3 | wire_type)
    if isinstance(value, int):
        return tag + encode_varint(value)
    return tag + (encode_varint(len(value)) if wire_type == BYTES else b"") + value
