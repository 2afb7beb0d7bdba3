"""The context around what an engine does: its errors become `ModelError`."""

from __future__ import annotations

from ..errors import ModelError, OnnxTextgenError, first_line


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
