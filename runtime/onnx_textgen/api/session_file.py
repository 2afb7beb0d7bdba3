"""The file of a saved session: NumPy's archive of arrays, with token ids, messages, and the digest of the model it belongs to.

The archive has a checksum of every entry. Nothing in it is code, and no entry is larger than the model's own cache could be.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import PackageError, first_line
from ..inference.decoder import Decoder
from ..kv_cache.snapshot import Arrays, Snapshot

FORMAT = "onnx-textgen session 1"
HEADER, TOKENS, CACHE, STATE = "header", "token_ids", "cache/", "state/"
BROKEN = (
    *(zipfile.BadZipFile, zlib.error, ValueError, KeyError, TypeError, AttributeError, IndexError),
    *(EOFError, NotImplementedError, RuntimeError, MemoryError, OverflowError),
)
"""What zipfile, NumPy and JSON raise for files that are not what they should be."""
MOST_HEADER_BYTES = 64 * 2**20
LONGEST_SAVE = 3600
"""Seconds."""


def write_session(
    path: Path, digest: str, token_ids: Sequence[int], messages: Sequence[Mapping[str, Any]], snapshot: Snapshot | None
) -> None:
    """Write a session to a file next to `path`, then rename it; leftovers of saves that were killed are removed."""
    snapshot = snapshot or Snapshot((), {})
    header = {"format": FORMAT, "model": digest, "messages": list(messages), "held": len(snapshot.token_ids)}
    header["is_beyond"], header["states"] = snapshot.uses_long_rope, sorted(snapshot.states)
    try:
        written = json.dumps(header).encode()
        partial = path.with_name(f".{path.name}.partial-{secrets.token_hex(4)}")
    except (TypeError, ValueError) as error:
        raise PackageError(f"the session cannot be saved as {str(path)!r} ({first_line(error)})") from error
    arrays: Arrays = {HEADER: np.frombuffer(written, np.uint8), TOKENS: np.asarray(token_ids, np.int64)}
    arrays[f"{TOKENS}_held"] = np.asarray(snapshot.token_ids, np.int64)
    arrays |= {CACHE + name: array for name, array in snapshot.tensors.items()}
    for length, states in snapshot.states.items():
        arrays |= {f"{STATE}{length}/{name}": array for name, array in states.items()}
    try:
        sweep(path)
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, ValueError) as error:
        raise PackageError(f"{str(path)!r} cannot be written ({first_line(error)}); give another place") from error
    finally:
        with contextlib.suppress(OSError, ValueError):
            partial.unlink(missing_ok=True)


def sweep(path: Path) -> None:
    """Clear away what saves to `path` left when they were killed: files so old that no save can be at them."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.partial-[0-9a-f]{{8}}")
    with contextlib.suppress(OSError):  # of another user, or cleared away by another save: nothing that this one needs
        for left in [each for each in path.parent.iterdir() if pattern.fullmatch(each.name)]:
            if time.time() - left.stat().st_mtime > LONGEST_SAVE:
                left.unlink()


@contextlib.contextmanager
def no_session(path: Path) -> Iterator[None]:
    """Turn whatever a broken archive raises into one line, and what the file system refuses."""
    try:
        yield
    except OSError as error:
        why = error.strerror or first_line(error)
        raise PackageError(f"{str(path)[:200]} cannot be read ({why}); give a file that a session was saved in") from error
    except BROKEN as error:
        raise PackageError(f"{path} is no saved session, or damaged ({first_line(error)}); save it again") from error


def read_session(path: Path, digest: str, context: Decoder) -> tuple[list[int], list[Mapping[str, Any]], Snapshot]:
    """Token ids, messages, and what `context` can be restored from; raises `PackageError` for a file that is not of this model."""
    with no_session(path):
        if path.exists() and not path.is_file():
            raise ValueError("it is no file")  # a device would be read without end, a pipe waited for
        with zipfile.ZipFile(path) as archive:
            limit = 3 * context.bytes_of(context.geometry.context_length) + MOST_HEADER_BYTES
            if sum(entry.file_size for entry in archive.infolist()) > limit:
                raise ValueError("it is larger than any session of this model")
            for entry in archive.infolist():
                check_claim(archive, entry)
        with np.load(path, allow_pickle=False) as arrays:
            header = json.loads(arrays[HEADER].tobytes())
            if header["format"] != FORMAT:
                raise ValueError(f"its format is {header['format']!r:.60}")
            if header["model"] != digest:
                raise PackageError(f"{path} was saved with another model; load it with that one")
            token_ids, held = arrays[TOKENS].tolist(), arrays[f"{TOKENS}_held"].tolist()
            check_ids(token_ids, held, context)
            messages: list[Mapping[str, Any]] = [dict(message) for message in header["messages"]]
            states = {
                int(length): {one.past: arrays[f"{STATE}{length}/{one.past}"] for one in context.cache.states.tensors}
                for length in header["states"]
            }
            cached = [one for one in context.cache.tensors if one.length_axis is not None]
            tensors = {one.past: arrays[CACHE + one.past] for one in cached if held}
    with no_session(path):
        for one in cached if held else ():
            check_array(tensors[one.past], one.sized(1, len(held)), one.dtype)
        for length, each in states.items():
            if not 0 <= length <= len(held):
                raise ValueError(f"it has states behind {length} of {len(held)} tokens")
            for one in context.cache.states.tensors:
                check_array(each[one.past], one.sized(1, 0)[1:], one.dtype)
        snapshot = Snapshot(tuple(held), tensors, states, bool(header["is_beyond"]))
        if snapshot.usable(len(held)) != len(held) or (held and bool(states) != context.capabilities.has_states):
            raise ValueError("its states do not go with its tokens")
        return token_ids, messages, snapshot


def check_claim(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """Raise `ValueError` for an array that says it is larger than its entry, before memory is made for it."""
    with archive.open(entry) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{entry.filename} is no array of this format")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if math.prod(shape) * dtype.itemsize > entry.file_size:
            raise ValueError(f"{entry.filename} says that it is larger than it is")


def check_array(array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:  # noqa: ANN401 - whatever the file holds
    """Raise `ValueError` for an array of another shape or type."""
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"it holds {array.dtype} {array.shape} in place of {dtype} {shape}")


def check_ids(token_ids: list[int], held: list[int], context: Decoder) -> None:
    """Raise `ValueError` for ids that are no text of the model."""
    geometry = context.geometry
    for ids in (token_ids, held):
        if len(ids) > geometry.context_length or not all(isinstance(i, int) and 0 <= i < geometry.vocab_size for i in ids):
            raise ValueError("its token ids are no text of this model")
