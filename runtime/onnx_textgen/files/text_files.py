"""Reads the text files of a model folder, which are untrusted: limited in size, UTF-8, and JSON without duplicate keys."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import PackageError, first_line

MOST_BYTES = 16 * 2**20
"""Limit for a settings file; a tokenizer's settings that list every added token have a few MiB."""


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the body (no permission, a name too long) into `PackageError`."""
    try:
        yield
    except OSError as error:
        raise PackageError(f"{str(path)[:200]} cannot be read ({error.strerror}); give a model folder you can read") from error


def read_text(path: Path, *, most: int = MOST_BYTES, sha256: str = "") -> str:
    """Read a text file, with every line end as a newline. With `sha256`, the bytes must have this digest; they are read once.

    Raises `PackageError` if the file cannot be read, has more than `most` bytes, has another digest, or is not UTF-8.
    """
    with readable(path), path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise PackageError(f"{path} is larger than {most >> 20} MiB, the limit for such a file; export or fetch the model again")
    if sha256:
        compare_digest(path, hashlib.sha256(content).hexdigest(), sha256)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PackageError(f"{path} is not UTF-8 text (byte {error.start}); export or fetch the model again") from error
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def compare_digest(path: Path, found: str, expected: str) -> None:
    """Raise `PackageError` if a file's sha256 differs from the one in its manifest."""
    if found != expected:
        raise PackageError(
            f"{path} is damaged: its sha256 is {found[:12]}..., the manifest says {expected[:12]}...; export or copy it again"
        )


def read_json(path: Path, *, most: int = MOST_BYTES) -> Any:  # noqa: ANN401 - any JSON value
    """Read a JSON file; raises `PackageError` if the file is not valid JSON, and the errors of `read_text`."""
    try:
        return parse_json(read_text(path, most=most))
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{path} is not valid JSON ({first_line(error)}); export or fetch the model again") from error


def parse_json(text: str) -> Any:  # noqa: ANN401 - any JSON value
    """Parse JSON; raises `ValueError`, also if an object has a duplicate key, whose value would depend on the reader.

    >>> parse_json('{"layers": 2, "layers": 3}')
    Traceback (most recent call last):
    ValueError: the key 'layers' occurs twice
    """
    return json.loads(text, object_pairs_hook=object_without_duplicates)


def object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object of its entries; raises `ValueError` if two have the same key."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r:.60} occurs twice")
    return found
