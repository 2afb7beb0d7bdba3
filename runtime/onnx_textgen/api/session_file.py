"""The file of a saved session: an archive of NumPy arrays with token ids, messages, a cache and the digest of its model.

The archive has a sha256 of all its arrays. It holds no code, and a file that is larger than any session of the model is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import PackageError, first_line
from ..files.replace import replaced_file
from ..images.image_rows import LOWEST
from ..inference.decoder import Decoder
from ..kv_cache.snapshot import Arrays, Origin, Snapshot

FORMAT = "onnx-textgen session 2"
EARLIER_FORMAT = "onnx-textgen session 1"
"""Without a digest; the archive's own checksums remain."""
INEXACT_FORMAT = "onnx-textgen session 3"
"""With tokens that are not exact, which earlier versions would not tell from others."""
HEADER, TOKENS, CACHE, STATE, DIGEST = "header", "token_ids", "cache/", "state/", "sha256"
BROKEN = (
    *(zipfile.BadZipFile, zlib.error, ValueError, KeyError, TypeError, AttributeError, IndexError),
    *(EOFError, NotImplementedError, RuntimeError, MemoryError, OverflowError, SyntaxError, tokenize.TokenError),
)
"""The exceptions of zipfile, NumPy and JSON for a damaged file, or one of another kind."""
MOST_HEADER_BYTES = 64 * 2**20
TOO_LARGE = "it is larger than any session of this model"


def write_session(
    path: Path,
    digest: str,
    token_ids: Sequence[int],
    messages: Sequence[Mapping[str, Any]],
    snapshot: Snapshot | None,
    *,
    adapters: Mapping[str, str],
) -> None:
    """Write a session to a file next to `path`, then rename it. Partial files of saves that were killed are removed.

    adapters: the digest of each adapter of the model. Raises `PackageError` if the messages are not JSON, or the file cannot be
    written.
    """
    snapshot = snapshot or Snapshot((), {})
    held = len(snapshot.token_ids)
    exact = snapshot.exact_part(held)
    header = {"format": FORMAT if exact == held else INEXACT_FORMAT, "model": digest, "messages": list(messages), "held": held}
    header["is_beyond"], header["states"] = snapshot.uses_long_rope, sorted(snapshot.states)
    header["shortest"], header["exact"] = snapshot.shortest, exact
    if (adapter := snapshot.origin.adapter) is not None:
        header["adapter"] = [adapter, adapters[adapter]]
    if snapshot.origin.engine is not None:
        header["engine"] = snapshot.origin.engine
    try:
        written = json.dumps(header).encode()
    except (TypeError, ValueError) as error:
        raise PackageError(f"the session cannot be saved as {str(path)!r} ({first_line(error)})") from error
    arrays: Arrays = {HEADER: np.frombuffer(written, np.uint8), TOKENS: np.asarray(token_ids, np.int64)}
    arrays[f"{TOKENS}_held"] = np.asarray(snapshot.token_ids, np.int64)
    arrays |= {CACHE + name: array for name, array in snapshot.tensors.items()}
    for length, states in snapshot.states.items():
        arrays |= {f"{STATE}{length}/{name}": array for name, array in states.items()}
    arrays[DIGEST] = arrays_digest(arrays)
    try:
        with replaced_file(path) as partial, partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
    except (OSError, ValueError) as error:
        raise PackageError(f"{str(path)!r} cannot be written ({first_line(error)}); give another place") from error


@contextlib.contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Raise a `PackageError` of one line for any error of the file system or of a damaged archive."""
    try:
        yield
    except OSError as error:
        why = error.strerror or first_line(error)
        raise PackageError(f"{str(path)[:200]} cannot be read ({why}); give the file of a saved session") from error
    except BROKEN as error:
        raise PackageError(f"{path} is not a saved session, or is damaged ({first_line(error)}); save it again") from error


def read_session(
    path: Path, digest: str, context: Decoder, *, adapters: Mapping[str, str]
) -> tuple[list[int], list[Mapping[str, Any]], Snapshot | None]:
    """Token ids, messages and a snapshot to restore a decoder like `context` from; `adapters`: see `write_session`.

    There is no snapshot if the model has no longer the adapter that it was computed with. Raises `PackageError` for a file that is
    not of this model.
    """
    with reading_errors(path):
        check_file(path, context)
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > most_bytes(context):
                raise ValueError(TOO_LARGE)
            for entry in archive.infolist():
                check_declared_size(archive, entry)
        with np.load(path, allow_pickle=False) as entries:
            header = read_header(entries, path, digest)
            arrays = dict(entries)
        if header["format"] != EARLIER_FORMAT and not np.array_equal(arrays.pop(DIGEST), arrays_digest(arrays)):
            raise ValueError("its sha256 differs from the one it was saved with")
        token_ids, cached_ids = arrays[TOKENS].tolist(), arrays[f"{TOKENS}_held"].tolist()
        check_ids(token_ids, cached_ids, context)
        messages: list[Mapping[str, Any]] = [dict(message) for message in header["messages"]]
        states = {
            int(length): {one.past: arrays[f"{STATE}{length}/{one.past}"] for one in context.cache.states.tensors}
            for length in header["states"]
        }
        cache_tensors = [one for one in context.cache.tensors if one.length_axis is not None]
        tensors = {one.past: arrays[CACHE + one.past] for one in cache_tensors if cached_ids}
        first = first_held(header, len(cached_ids), context)
        for one in cache_tensors if cached_ids else ():
            held = len(cached_ids) - (0 if one.window is None else first)
            check_array(tensors[one.past], one.sized(1, held), one.dtype)
        for length, each in states.items():
            if not 0 <= length <= len(cached_ids):
                raise ValueError(f"it has states at token {length} of {len(cached_ids)}")
            for one in context.cache.states.tensors:
                check_array(each[one.past], one.sized(1, 0)[1:], one.dtype)
        origin, is_known = read_origin(header, adapters)
        is_beyond, shortest, exact_length = bool(header["is_beyond"]), shortest_of(header), exact_of(header, len(cached_ids))
        snapshot = Snapshot(tuple(cached_ids), tensors, states, is_beyond, origin, shortest, exact_length)
        if snapshot.usable(len(cached_ids)) != len(cached_ids) or (cached_ids and bool(states) != context.capabilities.has_states):
            raise ValueError("its states do not match its tokens")
        return token_ids, messages, snapshot if is_known else None


def read_beginning(path: Path, digest: str, context: Decoder, *, adapters: Mapping[str, str]) -> Snapshot | None:
    """The snapshot of a file without its arrays, to know whether to read them; None if its adapter is not that of the model.

    Raises as `read_session` does.
    """
    with reading_errors(path):
        check_file(path, context)
        with zipfile.ZipFile(path) as archive:
            for name in (HEADER, f"{TOKENS}_held"):
                entry = archive.getinfo(f"{name}.npy")
                if entry.file_size > 2**16 + 8 * context.geometry.context_length:
                    raise ValueError(f"its {name} is larger than that of any prompt")
                check_declared_size(archive, entry)
        with np.load(path, allow_pickle=False) as arrays:
            header, cached_ids = read_header(arrays, path, digest), arrays[f"{TOKENS}_held"].tolist()
        check_ids([], cached_ids, context)
        origin, is_known = read_origin(header, adapters)
        states: dict[int, Arrays] = {int(length): {} for length in header["states"]}
        first_held(header, len(cached_ids), context)
        return Snapshot(tuple(cached_ids), {}, states, origin=origin, shortest=shortest_of(header)) if is_known else None


def arrays_digest(arrays: Arrays) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The sha256 of the names, types, shapes and bytes of arrays, as uint8 [32]."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return np.frombuffer(digest.digest(), np.uint8)


def most_bytes(context: Decoder) -> int:
    """The most bytes that a session of a model may have, also one that an earlier version wrote, without windows."""
    length = context.geometry.context_length
    return 3 * sum(math.prod(one.sized(1, length)) * one.dtype.itemsize for one in context.cache.tensors) + MOST_HEADER_BYTES


def check_file(path: Path, context: Decoder) -> None:
    """Raise `ValueError` if a path is no file, or a file that is too large, before it is opened."""
    if path.exists() and not path.is_file():
        raise ValueError("it is not a file")  # reading a device might never end, and a pipe might block
    if path.stat().st_size > 2 * most_bytes(context):
        raise ValueError(TOO_LARGE)


def read_header(arrays: Mapping[str, Any], path: Path, digest: str) -> dict[str, Any]:
    """The header of a file; raises `ValueError` for another format, and `PackageError` for another model."""
    header: dict[str, Any] = json.loads(arrays[HEADER].tobytes())
    if header["format"] not in (FORMAT, EARLIER_FORMAT, INEXACT_FORMAT):
        raise ValueError(f"its format is {header['format']!r:.60}")
    if header["model"] != digest:
        raise PackageError(f"{path} was saved with another model; load it with that one")
    return header


def shortest_of(header: Mapping[str, Any]) -> int:
    """See `Snapshot.shortest`; earlier versions saved whole texts."""
    return int(header.get("shortest", 0))


def exact_of(header: Mapping[str, Any], held: int) -> int:
    """See `Snapshot.exact_length`; earlier versions saved what is exact alone. Raises `ValueError` for no such number."""
    exact = int(header.get("exact", held))
    if not 0 <= exact <= held:
        raise ValueError(f"{exact} of its {held} tokens are exact")
    return exact


def first_held(header: Mapping[str, Any], length: int, context: Decoder) -> int:
    """The first token that layers with a window have in a file of `length` tokens; raises `ValueError` if they have too few."""
    shortest, window = shortest_of(header), context.cache.windows.window
    if not shortest:
        return 0
    if window is None or not window.size < shortest <= length:
        raise ValueError(f"its windows begin {shortest} tokens into {length}")
    return shortest - window.size


def read_origin(header: Mapping[str, Any], adapters: Mapping[str, str]) -> tuple[Origin, bool]:
    """The origin of a file, and whether the model has its adapter."""
    adapter, digest = header.get("adapter", (None, None))
    origin = Origin(adapter, header.get("engine"))
    return origin, adapter is None or (isinstance(adapter, str) and adapter in adapters and adapters[adapter] == digest)


def check_declared_size(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """Raise `ValueError` for an array that declares more bytes than its entry has, before memory is allocated for it."""
    with archive.open(entry) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{entry.filename} is not an array of this format")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if math.prod(shape) * dtype.itemsize > entry.file_size:
            raise ValueError(f"{entry.filename} declares more bytes than it has")


def check_array(array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:  # noqa: ANN401 - of any type, from a file
    """Raise `ValueError` for an array of another shape or type."""
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"it holds {array.dtype} {array.shape} instead of {dtype} {shape}")


def check_ids(token_ids: list[int], cached_ids: list[int], context: Decoder) -> None:
    """Raise `ValueError` for ids outside the vocabulary, or more than the context holds."""
    geometry, least = context.geometry, 0 if context.images is None else LOWEST
    for ids in (token_ids, cached_ids):
        if len(ids) > geometry.context_length or not all(isinstance(i, int) and least <= i < geometry.vocab_size for i in ids):
            raise ValueError("its token ids do not fit this model")
