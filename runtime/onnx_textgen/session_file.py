"""The file of a saved session: NumPy's archive of arrays, with token ids, messages, and the digest of the model it belongs to.

The archive has a checksum of every entry. Nothing in it is code, and no entry is larger than the model's own cache could be.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .artifact import readable
from .decoder import Decoder
from .errors import PackageError, first_line
from .snapshots import Arrays, Snapshot

FORMAT = "onnx-textgen session 1"
HEADER, TOKENS, CACHE, STATE = "header", "token_ids", "cache/", "state/"
MOST_HEADER_BYTES = 64 * 2**20


def write_session(
    path: Path, digest: str, token_ids: Sequence[int], messages: Sequence[Mapping[str, Any]], snapshot: Snapshot
) -> None:
    """Write a session beside its place, then move it there."""
    header = {"format": FORMAT, "model": digest, "messages": list(messages), "held": len(snapshot.token_ids)}
    header["is_beyond"], header["states"] = snapshot.is_beyond, sorted(snapshot.states)
    arrays: Arrays = {HEADER: np.frombuffer(json.dumps(header).encode(), np.uint8), TOKENS: np.asarray(token_ids, np.int64)}
    arrays[f"{TOKENS}_held"] = np.asarray(snapshot.token_ids, np.int64)
    arrays |= {CACHE + name: array for name, array in snapshot.tensors.items()}
    for length, states in snapshot.states.items():
        arrays |= {f"{STATE}{length}/{name}": array for name, array in states.items()}
    partial = path.with_name(f".{path.name}.partial-{secrets.token_hex(4)}")
    try:
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise PackageError(f"{path} cannot be written ({error.strerror}); give another place") from error
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def no_session(path: Path) -> Iterator[None]:
    """Turn whatever a broken archive raises into one line."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, TypeError, EOFError, NotImplementedError, RuntimeError) as error:
        raise PackageError(f"{path} is no saved session, or damaged ({first_line(error)}); save it again") from error


def read_session(path: Path, digest: str, context: Decoder) -> tuple[list[int], list[Mapping[str, Any]], Snapshot]:
    """Token ids, messages, and what `context` can be restored from; raises `PackageError` for a file that is not of this model."""
    with readable(path), no_session(path):
        with zipfile.ZipFile(path) as archive:
            limit = 3 * context.bytes_of(context.geometry.context_length) + MOST_HEADER_BYTES
            if sum(entry.file_size for entry in archive.infolist()) > limit:
                raise ValueError("it is larger than any session of this model")
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
            tensors = {one.past: arrays[CACHE + one.past] for one in cached}
    with no_session(path):
        for one in cached:
            check_array(tensors[one.past], one.sized(1, len(held)), one.dtype)
        for length, each in states.items():
            if not 0 <= length <= len(held):
                raise ValueError(f"it has states behind {length} of {len(held)} tokens")
            for one in context.cache.states.tensors:
                check_array(each[one.past], one.sized(1, 0)[1:], one.dtype)
        return token_ids, messages, Snapshot(tuple(held), tensors, states, bool(header["is_beyond"]))


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
