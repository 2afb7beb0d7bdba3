"""The models that a page offers, by name; each is loaded when it is first requested."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_textgen
from onnx_textgen.errors import OnnxTextgenError, OptionError
from onnx_textgen.hub.model_cache import cached_packages, find_cached
from onnx_textgen.options.checks import shown
from onnx_textgen.package.end_tokens import read_template
from onnx_textgen.package.locate import DEFAULT_PACKAGE, embedded_packages, find_package

from .encoder_decoders import can_chat

if TYPE_CHECKING:
    from onnx_textgen import Model

Opener = Callable[[], "Model"]
"""Loads a model."""


class ModelRegistry:
    """Models by name. Safe for concurrent threads; no model is loaded twice."""

    def __init__(self, openers: Mapping[str, Opener], chat_names: Collection[str] = ()) -> None:
        """`openers`: functions that load a model, by the name shown on the page; at least one.

        `chat_names`: those that are known to have a chat template before they are loaded.
        """
        self.openers = dict(openers)
        self._chat_names = set(chat_names)
        self._locks = {name: threading.Lock() for name in openers}
        self._loaded: dict[str, Model] = {}

    @property
    def names(self) -> list[str]:
        """The names, in the given order."""
        return list(self.openers)

    def add(self, name: str, opener: Opener) -> None:
        """Add a model, if there is none of that name."""
        self._locks.setdefault(name, threading.Lock())
        self.openers.setdefault(name, opener)

    def model(self, name: str | None = None) -> Model:
        """The model of that name, loaded if necessary; None: the first one.

        Raises `OptionError` for an unknown name, and the errors of `onnx_textgen.load`. A model that failed to load is tried again
        on the next call, because its folder may have been fixed.
        """
        name = self.names[0] if name is None else name
        if not isinstance(name, str):
            raise OptionError(f"model should be a name, found {shown(name)}; take one of: {', '.join(self.names)}")
        if name not in self.openers:
            raise OptionError(f"there is no model {name[:80]!r} here; take one of: {', '.join(self.names)}")
        with self._locks[name]:
            if name not in self._loaded:
                model = self.openers[name]()
                if model.manifest.text_encoder is not None:
                    model.close()
                    raise OptionError(f"{name} is an encoder, which writes no text; serve it with: onnx-textgen serve {name}")
                self._loaded[name] = model
            return self._loaded[name]

    def chat_names(self) -> list[str]:
        """The names of the models that have a chat template, as far as that is known."""
        loaded = {name: can_chat(model) for name, model in self._loaded.items()}
        return [name for name in self.names if loaded.get(name, name in self._chat_names)]

    def loaded(self, name: str) -> Model | None:
        """The model if it is already loaded."""
        return self._loaded.get(name)


def make_registry(
    packages: Sequence[str], *, device: str, threads: int | None, response_template: Path | None = None
) -> ModelRegistry:
    """A registry of folders and embedded models; without packages, all embedded models, the default first, and the cache.

    `response_template`: how their answers are divided, instead of how they say.
    """
    if not packages:
        embedded = sorted(embedded_packages(), key=lambda name: name != DEFAULT_PACKAGE) or [DEFAULT_PACKAGE]
        packages = [*embedded, *cached_packages()]

    named = names_of(packages)
    opens = functools.partial(opener, device=device, threads=threads, response_template=response_template)
    openers = {name: opens(package) for name, package in named.items()}
    return ModelRegistry(openers, [name for name, package in named.items() if has_template(package)])


def has_template(package: str) -> bool:
    """Whether a package has a chat template, without loading it; False if its files cannot be read."""
    try:
        return read_template(find_cached(package) or find_package(package)) is not None
    except (OnnxTextgenError, OSError):
        return False


def opener(package: str, *, device: str, threads: int | None, response_template: Path | None = None) -> Opener:
    """The function that loads a package."""
    return lambda: onnx_textgen.load(package, device=device, threads=threads, response_template=response_template)


def names_of(packages: Sequence[str]) -> dict[str, str]:
    """A name for each package: its folder's name, or the whole path if two folders have the same name.

    >>> names_of(["story", "models/a/int4", "models/b/int4", "models/c"])
    {'story': 'story', 'models/a/int4': 'models/a/int4', 'models/b/int4': 'models/b/int4', 'c': 'models/c'}
    """
    short = [Path(package).name or package for package in packages]
    return {package if short.count(name) > 1 else name: package for name, package in zip(short, packages, strict=True)}
