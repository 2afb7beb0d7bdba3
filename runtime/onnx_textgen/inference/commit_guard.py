"""The context around a run, which marks a decoder inconsistent after an interrupt."""

from __future__ import annotations

from typing import Protocol

from ..errors import OnnxTextgenError


class HasCache(Protocol):
    """An object with a cache that runs change, and that an interrupt can make inconsistent."""

    is_inconsistent: bool
    changes: int


class CommitGuard:
    """Around a run and the bookkeeping after it: counts the change, and after an interrupt marks the decoder inconsistent."""

    __slots__ = ("decoder",)

    def __init__(self, decoder: HasCache) -> None:
        self.decoder = decoder

    def __enter__(self) -> None:
        self.decoder.is_inconsistent = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, OnnxTextgenError):  # after such an error the cache is the same as before the run
            self.decoder.is_inconsistent = False
        self.decoder.changes += 1
