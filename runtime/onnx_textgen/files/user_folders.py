"""Folders under the user's home, also for a user who has none: containers run under numbers that no entry of the system names."""

from __future__ import annotations

from pathlib import Path

NO_HOME = Path("/nonexistent")
"""The home that Debian gives to users without one; nothing is found there, and nothing can be written."""


def expanded(path: str | Path) -> Path:
    """Replace a leading `~` by the user's home, or by a folder that does not exist if the system knows no home.

    >>> expanded("models/story")
    PosixPath('models/story')
    """
    path = Path(path)
    try:
        return path.expanduser()
    except RuntimeError:
        return NO_HOME.joinpath(*path.parts[1:])


def own_cache() -> Path:
    """The cache folder of this project among those of the user."""
    from platformdirs import user_cache_path  # noqa: PLC0415  (most commands need none)

    try:
        return user_cache_path("onnx-textgen", appauthor=False)
    except RuntimeError:
        return NO_HOME / ".cache" / "onnx-textgen"
