"""Fetches a small file from an address of the web, within limits; the environment's proxies and certificates apply."""

from __future__ import annotations

import contextlib
import http.client
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from ..errors import PackageError, first_line

SCHEME = "https://"
TIMEOUT_SECONDS = 30.0
PART_BYTES = 1 << 16


@contextlib.contextmanager
def fetched(address: str, most_bytes: int) -> Iterator[Path]:
    """Within the context, the file of an `https` address. Raises `PackageError` if it cannot be had, or is larger than may be."""
    with tempfile.TemporaryDirectory(prefix="onnx-textgen-") as folder:
        path = Path(folder) / "fetched"
        try:
            write(address, most_bytes, path)
        except (OSError, ValueError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it holds the connection
            remedy = "fetch it by hand, and give the file"
            raise PackageError(f"{address:.200} cannot be fetched ({first_line(error)}); {remedy}") from error
        yield path


def write(address: str, most_bytes: int, path: Path) -> None:
    """Write what an address holds to a path; raises `ValueError` for what may not be fetched."""
    if not address.lower().startswith(SCHEME):
        raise ValueError(f"only addresses that begin with {SCHEME} are fetched")
    with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as answer, path.open("wb") as file:
        if not answer.url.lower().startswith(SCHEME):
            raise ValueError(f"it leads to an address without {SCHEME}")
        left = most_bytes
        while data := answer.read(PART_BYTES):
            left -= len(data)
            if left < 0:
                raise ValueError(f"it is larger than {most_bytes / 1e6:,.0f} MB")
            file.write(data)
