"""Context managers around runs: they turn errors into `ModelError`, and mark a decoder inconsistent after an interrupt."""

from __future__ import annotations

from typing import Protocol

from ..errors import ModelError, OnnxTextgenError, first_line


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


class model_errors:  # noqa: N801 - a context, and a class rather than a generator because every step of the model is in one
    """Turn any error of an engine or NumPy, out of memory included, into `ModelError`."""

    __slots__ = ("doing",)

    def __init__(self, doing: str) -> None:
        self.doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, OnnxTextgenError):
            raise ModelError(f"the model failed while it {self.doing}: {first_line(error)}") from error
