"""Finds a model by the name of an embedded model, or by its path."""

from __future__ import annotations

from pathlib import Path

from ..errors import PackageError
from .manifest import MANIFEST

DEFAULT_PACKAGE = "story"


def embedded_packages() -> dict[str, Path]:
    """The folders of the models that ship with the project, by name; only those that are present."""
    inside_wheel = Path(__file__).parents[1] / "artifacts"
    in_checkout = Path(__file__).parents[3] / "artifacts"
    root = inside_wheel if inside_wheel.is_dir() else in_checkout
    return {path.parent.name: path.parent for path in sorted(root.glob(f"*/{MANIFEST}"))}


def find_package(name: str | Path | None = None) -> Path:
    """The folder of an embedded model (`story`, `tiny-transformer`; None: the default), or the folder at this path.

    To open a folder that has the name of an embedded model, write it as a path: `./story`, or a `Path`. Raises `PackageError` if
    the default is requested and the installation has no embedded model.
    """
    embedded = embedded_packages()
    if name is None:
        if DEFAULT_PACKAGE not in embedded:
            raise PackageError("this installation has no embedded model; reinstall it, or give a model folder")
        return embedded[DEFAULT_PACKAGE]
    return embedded[name] if isinstance(name, str) and name in embedded else Path(name)
