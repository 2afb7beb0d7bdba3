"""The text files beside a graph, which anybody may have written: of a limited size, UTF-8, and JSON that says nothing twice."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import PackageError, first_line

MOST_BYTES = 16 * 2**20
"""Of a settings file; those of tokenizers that list every added token come to some of them."""


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what the file system refuses (no permission, a name too long) into `PackageError`."""
    try:
        yield
    except OSError as error:
        raise PackageError(f"{str(path)[:200]} cannot be read ({error.strerror}); give a model folder you can read") from error


def read_text(path: Path, *, most: int = MOST_BYTES, sha256: str = "") -> str:
    """A file's text, line ends as in Python; with `sha256` only that of the bytes with this digest, which are read once.

    Raises `PackageError` for a file that cannot be read, has more than `most` bytes, is other than its digest, or is not UTF-8.
    """
    with readable(path), path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise PackageError(f"{path} has more than {most >> 20} MiB, as no such file has; export or fetch the model again")
    if sha256:
        compare_digest(path, hashlib.sha256(content).hexdigest(), sha256)
    try:
        return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise PackageError(f"{path} is not UTF-8 text (byte {error.start}); export or fetch the model again") from error


def compare_digest(path: Path, found: str, expected: str) -> None:
    """Raise `PackageError` where a file is not the one that its manifest describes."""
    if found != expected:
        raise PackageError(
            f"{path} is damaged: its sha256 is {found[:12]}..., the manifest says {expected[:12]}...; export or copy it again"
        )


def read_json(path: Path, *, most: int = MOST_BYTES) -> Any:  # noqa: ANN401 - whatever the file holds
    """A file's JSON; raises `PackageError` for a file that is no JSON, beside what `read_text` raises."""
    try:
        return parse_json(read_text(path, most=most))
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{path} is not valid JSON ({first_line(error)}); export or fetch the model again") from error


def parse_json(text: str) -> Any:  # noqa: ANN401 - whatever the text holds
    """JSON in which no object has a key twice, as two readers could take two meanings from it; raises `ValueError`.

    >>> parse_json('{"layers": 2, "layers": 3}')
    Traceback (most recent call last):
    ValueError: the key 'layers' is there twice
    """
    return json.loads(text, object_pairs_hook=without_duplicates)


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these entries; raises `ValueError` where two have one key."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r:.60} is there twice")
    return found
