"""The cache of models: packages that were exported on this machine for a name, so that the name opens them from then on.

A name is that of a model on the Hugging Face hub (`owner/name`) or a short name (see `short_names`). Its folder is called as a URL
quotes the name.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from urllib.parse import quote, unquote

from ..errors import PackageError, did_you_mean
from ..files.user_folders import expanded, own_cache
from ..package.manifest import MANIFEST

VARIABLE = "ONNX_TEXTGEN_CACHE"
NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*(@[\w./-]{1,100})?)?")


def cache_folder() -> Path:
    """Where the cache is: the folder that `ONNX_TEXTGEN_CACHE` names, or one in the user's own cache folder."""
    named = os.environ.get(VARIABLE)
    if named:
        return expanded(named)
    return own_cache() / "models"


def is_name(name: str) -> bool:
    """Return whether the cache can hold a model of this name."""
    return len(name) <= 200 and NAME.fullmatch(name) is not None


def place_of(name: str) -> Path:
    """The folder for the model of this name.

    >>> place_of("owner/name@v1").name
    'owner%2Fname%40v1'
    """
    if not is_name(name):
        raise PackageError(
            f"{name!r:.80} cannot be the name of a model in the cache; give owner/name, or a name from: onnx-textgen pull"
        )
    return cache_folder() / quote(name, safe="")


def find_cached(name: str | Path | None) -> Path | None:
    """The package of this name in the cache; None if there is none, or this cannot be a name."""
    if not isinstance(name, str) or not is_name(name):
        return None
    place = place_of(name)
    return place if (place / MANIFEST).is_file() else None


def cached_packages() -> dict[str, Path]:
    """The packages in the cache, by name."""
    return {unquote(manifest.parent.name): manifest.parent for manifest in sorted(cache_folder().glob(f"*/{MANIFEST}"))}


def remove_cached(name: str) -> int:
    """Delete the package of this name; returns the bytes that this frees. Raises `PackageError` if the cache has no such model."""
    place = find_cached(name)
    if place is None:
        known = cached_packages()
        has = ", ".join(known) or "no models"
        raise PackageError(f"the cache has no model {name:.80}; {did_you_mean(name, known)}it has {has}")
    size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    try:
        shutil.rmtree(place)
    except OSError as error:
        raise PackageError(
            f"{place} cannot be deleted ({error.strerror}); close the programs that use it, and try again"
        ) from error
    return size
