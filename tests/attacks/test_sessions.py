"""Saved sessions that are damaged, made up, or say that they are larger than they are."""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from support.examples import examples

from .law import PACKAGE, Cell, Verdict, judged, open_model
from .no_files import NO_FILES
from .values import Draw, damaged, json_values

Entries = dict[str, bytes]
Arrays = dict[str, Any]
PROMPT = [5, 9, 2, 40]


@functools.cache
def model() -> onnx_textgen.Model:
    """What the sessions are of."""
    return open_model(PACKAGE)


@functools.cache
def saved() -> tuple[bytes, tuple[int, ...], tuple[int, ...]]:
    """A good file, the ids of its session, and those that it goes on with."""
    session = model().session()
    session.append(PROMPT)
    session.generate(max_new_tokens=5, temperature=0)
    with tempfile.TemporaryDirectory() as folder:
        session.save(Path(folder) / "saved")
        content = (Path(folder) / "saved").read_bytes()
    before = session.token_ids
    return content, before, session.generate(max_new_tokens=5, temperature=0).token_ids


def entries() -> Entries:
    """The parts of the good file."""
    with zipfile.ZipFile(io.BytesIO(saved()[0])) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def arrays() -> Arrays:
    """The same as arrays."""
    with np.load(io.BytesIO(saved()[0])) as archive:
        return dict(archive)


def load(path: Path) -> Verdict:
    """A session that is loaded is the one that was saved, and goes on like it."""

    def use() -> tuple[tuple[int, ...], tuple[int, ...]]:
        session = model().load_session(path)
        before = session.token_ids
        return before, session.generate(max_new_tokens=5, temperature=0).token_ids

    return judged(use, lambda found: found == saved()[1:])


def use_text(path: Path) -> Verdict:
    """A session of other ids, which its maker may well save: it goes on with any text, if it is one of this model."""

    def use() -> None:
        session = model().load_session(path)
        if len(session):
            session.generate(max_new_tokens=3, temperature=0)

    return judged(use)


def load_bytes(folder: Path, content: bytes) -> Verdict:
    """Load a file of these bytes."""
    (folder / "saved").write_bytes(content)
    return load(folder / "saved")


def use_bytes(folder: Path, content: bytes) -> Verdict:
    """Load a session that its maker may well have saved."""
    (folder / "saved").write_bytes(content)
    return use_text(folder / "saved")


def load_no_file(folder: Path, what: str) -> Verdict:
    """Load what is no file."""
    NO_FILES[what](folder / "saved")
    return load(folder / "saved")


@st.composite
def damage(draw: Draw) -> bytes:
    """A file that is damaged anywhere, or where the archive tells what it holds."""
    content = saved()[0]
    place = (content.find, content.rfind)[draw(st.integers(0, 1))](b"PK\1\2")
    place += draw(st.integers(0, min(80, len(content) - place) - 1))
    return draw(damaged(content) | st.integers(0, 255).map(lambda byte: content[:place] + bytes([byte]) + content[place + 1 :]))


@examples(60)
@given(st.data())
def test_a_damaged_session_file_is_refused_in_one_line_or_the_session_is_the_one_that_was_saved(
    cell: Cell, data: st.DataObject
) -> None:
    cell.hold(load_bytes, data.draw(damage()))


def archive_of(parts: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of these parts."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return out.getvalue()


def npy(array: Any) -> bytes:
    """An array as a file, pickled where it is of objects."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array), allow_pickle=True)
    return out.getvalue()


def claim(shape: tuple[int, ...], kind: str = "<f4", content: bytes = b"", version: int = 1) -> bytes:
    """The beginning of an array that says how large it is."""
    out = io.BytesIO()
    write = np.lib.format.write_array_header_1_0 if version == 1 else np.lib.format.write_array_header_2_0
    write(out, {"shape": shape, "fortran_order": False, "descr": kind})
    return out.getvalue() + content


def with_header(text: str) -> bytes:
    """The beginning of an array, of any text."""
    body = text.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


class Payload:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os._exit, (77,)


ENTRY_CONTENTS = (
    *(with_header( "{'descr': " + "[('a', " * 200 + "'<f4'" + ")]" * 200 + ", 'fortran_order': False, 'shape': (1,)}" ), b"xx"),
    *(with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 30_000 + ")}"), claim((1,), "<M8[s]", b"\0" * 8)),
    *(with_header("{'descr': '<i8', 'fortran_order': True, 'shape': (2, 2)}") + b"\0" * 32, claim((1,) * 100, content=b"\0" * 4)),
    *(claim((1,), "|O", pickle.dumps(Payload())), claim((1,), content=b"\0" * 4, version=2), claim((1,) * 40, content=b"\0" * 4)),
    *(with_header("__import__('os')._exit(77)"), npy(np.array([Payload()], object)), with_header("{'descr': '<f4'}"), claim((-1,))),
    *(with_header("-" * 60_000 + "1"), claim((1,), "|V2147483647"), claim((1,), "<U100000000"), with_header("(" * 60_000), b""),
    *(pickle.dumps(Payload()), claim((2**40,), "|V0"), claim((2**40, 2**40)), claim((0, 2**62)), claim((10**12,)), claim((-4, -4))),
    claim((2**64,)),
)  # fmt: skip
IDS: tuple[Any, ...] = (
    *([], [-1], [258], [2**62], [[1, 2]], 5, [1.5], [float("nan")], [True], ["a"], [1j], list(range(2, 250)) * 4),
    *(np.array([3], np.uint64), np.array([3], ">i8"), np.array([200], np.uint8)),
)
HEADERS = ("", "{", "[]", "[" * 10**5, "NaN", {"messages": [{}] * 1_000}, {"states": ["9" * 5_000]}, {"format": "x" * 10**6})


def with_arrays(change: Mapping[str, Any]) -> bytes:
    """The good file with some arrays that are others; None: left out."""
    after = {name: value for name, value in {**arrays(), **change}.items() if value is not None}
    return archive_of({f"{name}.npy": npy(value) for name, value in after.items()})


def with_header_of(change: Mapping[str, Any] | str) -> bytes:
    """The good file with another header."""
    header = json.loads(arrays()["header"].tobytes())
    text = change if isinstance(change, str) else json.dumps({**header, **change})
    return with_arrays({"header": np.frombuffer(text.encode(), np.uint8)})


def arrays_of_cache() -> Iterator[tuple[str, bytes]]:
    """Keys and values of other shapes and types, or none."""
    for name, array in arrays().items():
        if name.startswith("cache/"):
            yield f"{name} is missing", with_arrays({name: None})
            yield f"{name} is longer", with_arrays({name: np.concatenate([array, array], axis=2)})
            yield f"{name} is shorter", with_arrays({name: array[:, :, 1:]})
            yield f"{name} is in double", with_arrays({name: array.astype(np.float64)})
            yield f"{name} is of whole numbers", with_arrays({name: array.view(np.int32)})
            yield f"{name} is of the other byte order", with_arrays({name: array.astype(">f4")})
            yield f"{name} has an axis more", with_arrays({name: array[None]})
            yield f"{name} is of no size", with_arrays({name: array[:0]})


def tricks() -> Iterator[tuple[str, bytes]]:
    """What archives can do."""
    whole = entries()
    many = {**whole, **{f"x{n}.npy": b"" for n in range(5_000)}}
    yield "names that lead out", archive_of({**whole, "../../outside.npy": npy([1]), "/tmp/outside.npy": npy([1])})
    yield "5,000 parts", archive_of(many)
    yield "zeros without end", archive_of({**whole, "header.npy": b"0" * 2**27}, zipfile.ZIP_DEFLATED)
    yield "zeros in a part more", archive_of({**whole, "more.npy": npy(np.zeros(2**24, np.float32))}, zipfile.ZIP_DEFLATED)
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        yield f"compressed by method {method}", archive_of(whole, method)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in [*whole.items(), ("token_ids.npy", npy([7]))]:
            with np.errstate(all="ignore"):
                archive.writestr(zipfile.ZipInfo(name), content) if name not in archive.namelist() else None
    yield "the parts without dates", out.getvalue()
    yield "no parts", archive_of({})
    yield "two archives in a row", saved()[0] + saved()[0]
    yield "bytes before it", b"#!/bin/sh\n" + saved()[0]
    yield "a comment", saved()[0][:-2] + b"\x05\x00hello"
    yield "a pickle for an archive", pickle.dumps(Payload())
    yield "an array for an archive", npy([1, 2])
    yield "an array of objects for an archive", npy(np.array([Payload()], object))
    data = bytearray(saved()[0])
    place = data.rfind(b"PK\1\2")
    data[place + 8] |= 1
    yield "a part that says it is encrypted", bytes(data)
    data[place + 8], data[place + 10] = 0, 99
    yield "a part of an unknown method", bytes(data)
    large = bytearray(saved()[0])
    large[large.rfind(b"PK\1\2") + 24 :][:4] = b""
    large[place + 20 : place + 28] = b"\xfe\xff\xff\xff" * 2
    yield "a part that says it has 4 GB", bytes(large)


@functools.cache
def forged() -> dict[str, tuple[Callable[..., Verdict], Any]]:
    """Archives that are whole, of parts that are not what they should be, each with how it may be loaded."""
    contents = {f"{name} is {what!r:.60}": archive_of({**entries(), name: what}) for name in entries() for what in ENTRY_CONTENTS}
    contents |= {f"the header is {header!r:.60}": with_header_of(header) for header in HEADERS}
    contents |= dict((*arrays_of_cache(), *tricks()))
    others = {
        f"{name} is {ids!r:.40}": with_arrays({name: np.asarray(ids)}) for ids in IDS for name in ("token_ids", "token_ids_held")
    }
    return {
        **{name: (load_bytes, content) for name, content in contents.items()},
        **{name: (use_bytes, content) for name, content in others.items()},
        **{f"it {what}": (load_no_file, what) for what in NO_FILES},
    }


@examples(60)
@given(st.deferred(lambda: st.sampled_from(list(forged()))))
def test_a_forged_session_file_is_refused_in_one_line_runs_no_code_and_takes_no_memory(cell: Cell, name: str) -> None:
    cell.hold(*forged()[name])


@examples(25)
@given(st.dictionaries(st.sampled_from(("format", "model", "messages", "held", "is_beyond", "states")), json_values, min_size=1))
def test_a_session_whose_header_has_any_values_is_refused_in_one_line_or_the_one_that_was_saved(
    cell: Cell, header: dict[str, Any]
) -> None:
    cell.hold(load_bytes, with_header_of(header))
