"""Saved sessions that are damaged, made up, or say that they are larger than they are."""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import random
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import onnx_textgen

from .flips import NO_FILES, open_model
from .law import Case, Law, Verdict, judged
from .manifests import PACKAGE

Entries = dict[str, bytes]
Arrays = dict[str, Any]
PROMPT = (5, 9, 2, 40)


@functools.cache
def model() -> onnx_textgen.Model:
    """What the sessions are of."""
    return open_model(PACKAGE)


@functools.cache
def saved() -> tuple[bytes, tuple[int, ...], tuple[int, ...]]:
    """A good file, the ids of its session, and those that it goes on with."""
    session = model().session()
    session.append(list(PROMPT))
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


def load_bytes(content: bytes, folder: Path) -> Verdict:
    """A file of these bytes."""
    (folder / "saved").write_bytes(content)
    return load(folder / "saved")


def damage(count: int, choose: random.Random) -> Iterator[Case]:
    """Flipped bits, ends, holes and more."""
    content = saved()[0]
    for number in range(count):
        data, way, place = bytearray(content), number % 5, choose.randrange(len(content))
        if way <= 1:
            for _ in range(choose.choice((1, 1, 1, 5))):
                data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        elif way == 2:
            del data[place:]
        elif way == 3:
            data[place:place] = choose.randbytes(choose.randrange(1, 50))
        else:  # where the archive tells what it holds
            place = content.rfind(b"PK\1\2") if choose.random() < 0.5 else content.find(b"PK\1\2")
            data[place + choose.randrange(min(80, len(data) - place))] = choose.randrange(256)
        name = ("a bit", "a bit", "its beginning", "more bytes", "its list of parts")[way]
        yield Case(f"{number}: {name}, {place}", functools.partial(load_bytes, bytes(data)))


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


ENTRY_CONTENTS: dict[str, Callable[[], bytes]] = {
    "is empty": lambda: b"",
    "is no array": lambda: b"xx",
    "is a pickle that ends the process": lambda: pickle.dumps(Payload()),
    "is an array of objects that ends the process": lambda: npy(np.array([Payload()], object)),
    "says it has 10^12 numbers": lambda: claim((10**12,)),
    "says it has more numbers than can be counted": lambda: claim((2**40, 2**40)),
    "says it has -1 numbers": lambda: claim((-1,)),
    "says it has -4 times -4 numbers": lambda: claim((-4, -4)),
    "says it has 2^64 numbers": lambda: claim((2**64,)),
    "says it has 0 times 2^62 numbers": lambda: claim((0, 2**62)),
    "says it has 40 axes": lambda: claim((1,) * 40, content=b"\0" * 4),
    "says it has 100 axes": lambda: claim((1,) * 100, content=b"\0" * 4),
    "says it has objects": lambda: claim((1,), "|O", pickle.dumps(Payload())),
    "says it has numbers of 2 GB": lambda: claim((1,), "|V2147483647"),
    "says it has numbers of no size": lambda: claim((2**40,), "|V0"),
    "says it has text": lambda: claim((1,), "<U100000000"),
    "says it has dates": lambda: claim((1,), "<M8[s]", b"\0" * 8),
    "is of another version": lambda: claim((1,), content=b"\0" * 4, version=2),
    "has a header of no sense": lambda: with_header("{'descr': '<f4'}"),
    "has a header that is code": lambda: with_header("__import__('os')._exit(77)"),
    "has a header of brackets": lambda: with_header("(" * 60_000),
    "has a header of minus signs": lambda: with_header("-" * 60_000 + "1"),
    "has a header that is long": lambda: with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 30_000 + ")}"),
    "has a type of types": lambda: with_header(
        "{'descr': " + "[('a', " * 200 + "'<f4'" + ")]" * 200 + ", 'fortran_order': False, 'shape': (1,)}"
    ),
    "is by columns": lambda: with_header("{'descr': '<i8', 'fortran_order': True, 'shape': (2, 2)}") + b"\0" * 32,
}
IDS: tuple[Any, ...] = (
    [],
    [-1],
    [258],
    [2**62],
    [[1, 2]],
    5,
    [1.5],
    [float("nan")],
    [True],
    ["a"],
    [1j],
    list(range(2, 250)) * 4,
    np.array([3], np.uint64),
    np.array([3], ">i8"),
    np.array([200], np.uint8),
)
HEADER_CHANGES: tuple[dict[str, Any], ...] = (
    {"format": "?"},
    {"format": None},
    {"format": "x" * 10**6},
    {"model": None},
    {"model": []},
    {"messages": None},
    {"messages": 5},
    {"messages": "abc"},
    {"messages": [5]},
    {"messages": [["a"]]},
    {"messages": [{"role": "user", "content": "x"}]},
    {"messages": [[["role", "user"], ["content", "x"]]]},
    {"messages": [{}] * 1_000},
    {"held": -1},
    {"held": 10**9},
    {"is_beyond": "yes"},
    {"is_beyond": True},
    {"states": [3]},
    {"states": ["../3"]},
    {"states": None},
    {"states": 5},
    {"states": {"3": 1}},
    {"states": [None]},
    {"states": [10**30]},
    {"states": ["9" * 5_000]},
    {"more": 1},
)


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


def made_up(count: int, choose: random.Random) -> Iterator[Case]:
    """Archives that are whole, of parts that are not what they should be."""
    made: list[tuple[str, Callable[[], bytes]]] = []
    for name in entries():
        for what, make in ENTRY_CONTENTS.items():
            made.append((f"{name} {what}", functools.partial(lambda n, m: archive_of({**entries(), n: m()}), name, make)))
    made += [(f"the header says {change!r:.60}", functools.partial(with_header_of, change)) for change in HEADER_CHANGES]
    made += [
        (f"the header is {text!r:.20}", functools.partial(with_header_of, text)) for text in ("", "{", "[]", "[" * 10**5, "NaN")
    ]
    made += [(what, functools.partial(bytes, content)) for what, content in (*arrays_of_cache(), *tricks())]
    cases = [Case(what, functools.partial(lambda make, folder: load_bytes(make(), folder), make)) for what, make in made]
    for ids, name in ((ids, name) for ids in IDS for name in ("token_ids", "token_ids_held")):
        cases.append(Case(f"{name} is {ids!r:.40}", functools.partial(other_ids, name, ids)))
    cases += [Case(f"it {what}", functools.partial(no_file, place)) for what, place in NO_FILES.items()]
    yield from choose.sample(cases, min(count, len(cases)))


def other_ids(name: str, ids: Any, folder: Path) -> Verdict:
    """Other token ids than those that the cache was made of."""
    (folder / "saved").write_bytes(with_arrays({name: np.asarray(ids)}))
    return use_text(folder / "saved")


def no_file(make: Callable[[Path], object], folder: Path) -> Verdict:
    """What is no file."""
    make(folder / "saved")
    return load(folder / "saved")


LAWS = (
    Law("A damaged session file is refused in one line, or the session is the one that was saved", damage, whole=500, quick=60),
    Law("A forged session file is refused in one line, runs no code and takes no memory", made_up, whole=300, quick=60),
)
