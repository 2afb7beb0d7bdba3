"""The packages that a page is for: each by its name, and loaded when it is first asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_textgen
from onnx_textgen.errors import OptionError
from onnx_textgen.options.checks import shown
from onnx_textgen.package.locate import DEFAULT_PACKAGE, embedded_packages

if TYPE_CHECKING:
    from onnx_textgen import Model


class Shelf:
    """Models by name. Safe to use from several threads; none is loaded twice."""

    def __init__(self, openers: Mapping[str, Callable[[], Model]]) -> None:
        """`openers`: what loads a model, by the name that a person picks it by; at least one."""
        self.openers = dict(openers)
        self._locks = {name: threading.Lock() for name in openers}
        self._loaded: dict[str, Model] = {}

    @property
    def names(self) -> list[str]:
        """In the order in which they were given."""
        return list(self.openers)

    def model(self, name: str | None = None) -> Model:
        """The model of that name, loaded now if it was not before; None: the first one.

        Raises `OptionError` for a name that is not here, and what `onnx_textgen.load` raises. What cannot load is tried again the
        next time: the folder may have been mended meanwhile.
        """
        name = self.names[0] if name is None else name
        if not isinstance(name, str):
            raise OptionError(f"model should be a name, found {shown(name)}; take one of: {', '.join(self.names)}")
        if name not in self.openers:
            raise OptionError(f"there is no model {name[:80]!r} here; take one of: {', '.join(self.names)}")
        with self._locks[name]:
            if name not in self._loaded:
                self._loaded[name] = self.openers[name]()
            return self._loaded[name]

    def loaded(self, name: str) -> Model | None:
        """The model if it was loaded before."""
        return self._loaded.get(name)


def make_shelf(packages: Sequence[str], *, device: str, threads: int | None) -> Shelf:
    """A shelf of folders and embedded models; without any, of all the embedded ones, the default first."""
    if not packages:
        packages = sorted(embedded_packages(), key=lambda name: name != DEFAULT_PACKAGE) or [DEFAULT_PACKAGE]

    def opener(package: str) -> Callable[[], Model]:
        return lambda: onnx_textgen.load(package, device=device, threads=threads)

    return Shelf({name: opener(package) for name, package in names_of(packages).items()})


def names_of(packages: Sequence[str]) -> dict[str, str]:
    """A name for each package: its folder's, or the whole path where two folders are called alike.

    >>> names_of(["story", "models/a/int4", "models/b/int4", "models/c"])
    {'story': 'story', 'models/a/int4': 'models/a/int4', 'models/b/int4': 'models/b/int4', 'c': 'models/c'}
    """
    short = [Path(package).name or package for package in packages]
    return {package if short.count(name) > 1 else name: package for name, package in zip(short, packages, strict=True)}
