"""Where a model is that was given by a name or a path."""

from __future__ import annotations

from pathlib import Path

from ..errors import PackageError
from .manifest import MANIFEST

DEFAULT_PACKAGE = "story"


def embedded_packages() -> dict[str, Path]:
    """The models that ship with the project, by name; empty entries never appear."""
    inside_wheel = Path(__file__).parents[1] / "artifacts"
    in_checkout = Path(__file__).parents[3] / "artifacts"
    root = inside_wheel if inside_wheel.is_dir() else in_checkout
    return {path.parent.name: path.parent for path in sorted(root.glob(f"*/{MANIFEST}"))}


def find_package(name: str | Path | None = None) -> Path:
    """The folder of an embedded model (`story`, `tiny-transformer`; None: the default), or the folder at that path.

    A folder called like an embedded model is meant where it is written as a path: `./story`, or a `Path`.
    """
    embedded = embedded_packages()
    if name is None:
        if DEFAULT_PACKAGE not in embedded:
            raise PackageError("this installation has no embedded model; reinstall it, or give a model folder")
        return embedded[DEFAULT_PACKAGE]
    return embedded[name] if isinstance(name, str) and name in embedded else Path(name)
